-- Takes permits of one limiter for callers in line, or tells when they will be free.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  now in ms since the epoch, or empty for the server's clock
--       2  whose limit counts: 'redis' the stored one; 'init' the stored one, else the one given;
--          'code' the one given, 'keep' the same but a differing stored one is left for now
--       3  '1' when the permits left are wanted exactly, else '0'
--       4  rate   5  interval, ms   6  type   7  keepAliveTime, ms; all empty with 'redis'
--       8, 9, 10, and so on in threes, for each caller in the order in which they came:
--          permits to take, 1 .. 2^32 - 1
--          the caller's own member: 0x10, 16 bytes never used before, permits as 32 bits little-endian
--          '1' if it waits in line, else '0'
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits left after this call; a lower bound unless wanted exactly (see 3) or somebody was refused
--       3  ms until all permits are free; where they were not wanted exactly, the interval if any is in use
--       4  the time that was used, ms since the epoch
--       5  rate and  6  interval, ms, in force
--       7  0 nothing, 1 the limit was created, 2 the limit was rewritten
--       8  scores that were set back because they came from a wrong clock
--       9, 10, and so on in pairs, for each caller:
--          1 granted, 0 refused, 2 refused for ever: more permits than the rate
--          ms until its permits are free, those of the callers that wait before it included; 0 when granted
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0 on the same state, retry-safe, with an exact wait and bounded work. Each
-- caller is granted whole or not at all. One that waits in line and does not fit closes the line to those behind it; one
-- that does not wait takes what is left.

local now = clock(ARGV[1])
local source = ARGV[2]
local exact = ARGV[3] == '1'

-- The limit in force.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local changed = 0
if (source == 'code' or source == 'keep') and limit[3] and limit[3] ~= ARGV[6] then
  return { OTHER_TYPE }
end
if not (limit[1] and limit[2] and limit[3]) then
  if source == 'redis' then
    return { UNINITIALIZED }
  end
  limit = { limit[1] or ARGV[4], limit[2] or ARGV[5], limit[3] or ARGV[6], limit[4] or ARGV[7] }
  changed = 1
end
local rate, interval = number_of(limit[1]), number_of(limit[2])
if not rate or not interval then
  return { UNREADABLE }
end

local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
local stored = tonumber(redis.call('GET', value_key) or nil)
local value = stored

if source == 'code' and (limit[1] ~= ARGV[4] or limit[2] ~= ARGV[5]) then
  if limit[2] == ARGV[5] then
    -- O(1), and a lowered rate holds at once: value may fall below zero.
    value = value and value + tonumber(ARGV[4]) - rate
  else
    value = nil
  end
  limit[1], limit[2] = ARGV[4], ARGV[5]
  rate, interval = tonumber(ARGV[4]), tonumber(ARGV[5])
  changed = 2
end

-- What is asked of it.

local reply = { 1, 0, 0, now, rate, interval, changed, 0 }
local wanted = 0
for i = 8, #ARGV, 3 do
  local permits = tonumber(ARGV[i])
  -- More than the rate only if it was granted before the limit was lowered.
  if permits <= rate or redis.call('ZSCORE', log, ARGV[i + 1]) then
    wanted = wanted + permits
  end
end
if wanted == 0 and changed == 0 then
  for _ = 8, #ARGV, 3 do
    reply[#reply + 1] = ABOVE_RATE
    reply[#reply + 1] = 0
  end
  return reply
end

-- What is left of it.

local newest
value, newest = agree(log, value, rate, interval, now, string.sub(ARGV[9], 2, 17))
if not value then
  return { FOREIGN_MEMBER }
end
if changed > 0 then
  -- Not earlier: limit and value change together or not at all.
  redis.call('HSET', KEYS[1], 'rate', limit[1], 'interval', limit[2], 'keepAliveTime', limit[4] or '0', 'type', limit[3])
end
if newest and (exact or value < wanted) then
  local budget = wanted + math.max(0, -value) + 1
  local enough, readable = wanted, nil
  if exact then
    budget = math.max(budget, wanted + PAGE)
    enough = math.huge
  end
  value, readable = sweep(log, value, rate, interval, now, enough, budget)
  if not readable then
    redis.call('SET', value_key, value, 'KEEPTTL')
    return { FOREIGN_MEMBER }
  end
end

-- The decisions.

local closed = false
-- For the one error that is found only later: what to undo.
local untouched, added = value, {}
-- Callers refused, and the permits that must be free for each of them.
local refused = {}
local in_line = 0
for i = 8, #ARGV, 3 do
  local permits, member, waits = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2] == '1'
  local status = GRANTED
  if value >= permits and not (closed and waits) then
    -- NX: a call that was sent twice finds its member and takes nothing more.
    if redis.call('ZADD', log, 'NX', now, member) == 1 then
      value = value - permits
      newest = math.max(newest or now, now)
      added[#added + 1] = member
    end
  elseif redis.call('ZSCORE', log, member) then
    -- So does one whose own permits were the last.
    status = GRANTED
  elseif permits > rate then
    status = ABOVE_RATE
  else
    status = REFUSED
    local before = 0
    if waits then
      before = in_line
      in_line = in_line + permits
      closed = true
    end
    -- More than the rate is never free at once: each further rate follows an interval later.
    local needs = before + permits
    local rounds = math.floor((needs - 1) / rate)
    refused[#refused + 1] = { reply = #reply + 2, needs = needs - rounds * rate, later = rounds * interval }
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = 0
end

-- The waits, after all grants: walk from the oldest entry to those whose expiry makes enough room.

if #refused > 0 then
  table.sort(refused, function(a, b) return a.needs < b.needs end)
  -- A score that no clock of ours can have made, too far ahead of the server's, was granted no later than now: it is set
  -- back on the way.
  local latest = ARGV[1] == '' and now + ahead_of(interval) or math.huge
  local page, at, start = {}, 1, 0
  -- What is left is free now.
  local freed, due = value, now - interval
  for _, caller in ipairs(refused) do
    while freed < caller.needs do
      if at > #page then
        local size = math.min(caller.needs - freed, PAGE)
        page, at = redis.call('ZRANGE', log, start, start + size - 1, 'WITHSCORES'), 1
        start = start + size
        if #page == 0 then
          -- Fewer permits in the log than are missing: the books are whole again when its last entry has expired.
          break
        end
      end
      local held = permits_of(page[at])
      if not held then
        if #added > 0 then
          redis.call('ZREM', log, unpack(added))
        end
        redis.call('SET', value_key, untouched, 'KEEPTTL')
        return { FOREIGN_MEMBER }
      end
      due = tonumber(page[at + 1])
      if due > latest then
        due = latest
        redis.call('ZADD', log, 'XX', due, page[at])
        reply[8] = reply[8] + 1
      end
      freed = freed + held
      at = at + 2
    end
    reply[caller.reply] = due + interval - now + caller.later
  end
  newest = newest and math.min(newest, latest)
end

-- What is stored.

if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
keep_alive(value_key, log, tonumber(limit[4]) or 0, interval, changed == 1, stored and changed == 0)

reply[2] = value
reply[3] = newest and (exact and newest + interval - now or interval) or 0
return reply
