-- Takes permits of one limiter, or tells when they will be free. The hot path: one call per decision.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  permits to take, 1 .. 2^32 - 1
--       2  the caller's own member: 0x10, 16 bytes never used before, permits as 32 bits little-endian
--       3  now in ms since the epoch, or empty for the server's clock
--       4  whose limit counts: 'redis' the stored one; 'init' the stored one, else the one given;
--          'code' the one given, 'keep' the same but a differing stored one is left for now
--       5  '1' when the permits left are wanted exactly, else '0'
--       6  rate   7  interval, ms   8  type   9  keepAliveTime, ms      (not with 'redis')
-- Reply 1  1 granted, 0 refused, 2 refused for ever: more permits than the rate; negative: an error, alone in the reply
--       2  permits left after this call; a lower bound unless wanted exactly (see 5) or refused
--       3  ms until as many permits as asked for are free, 0 when granted
--       4  ms until all permits are free
--       5  the time that was used, ms since the epoch
--       6  rate and  7  interval, ms, in force
--       8  0 nothing, 1 the limit was created, 2 the limit was rewritten
--       9  scores that were set back because they came from a wrong clock
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0 on the same state, retry-safe, with an exact wait and bounded work.

local permits = tonumber(ARGV[1])
local member = ARGV[2]
local now = clock(ARGV[3])
local source = ARGV[4]
local exact = ARGV[5] == '1'

-- The limit in force.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local changed = 0
local from_code = source == 'code' or source == 'keep'
if from_code and limit[3] and limit[3] ~= ARGV[8] then
  return { OTHER_TYPE }
end
if not (limit[1] and limit[2] and limit[3]) then
  if source == 'redis' then
    return { UNINITIALIZED }
  end
  limit = { limit[1] or ARGV[6], limit[2] or ARGV[7], limit[3] or ARGV[8], limit[4] or ARGV[9] }
  changed = 1
end
local rate, interval = tonumber(limit[1]), tonumber(limit[2])
if not rate or not interval then
  return { UNREADABLE }
end

local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
local stored = tonumber(redis.call('GET', value_key) or nil)
local value = stored

if source == 'code' and (limit[1] ~= ARGV[6] or limit[2] ~= ARGV[7]) then
  if limit[2] == ARGV[7] then
    -- O(1), and a lowered rate holds at once: value may fall below zero.
    value = value and value + tonumber(ARGV[6]) - rate
  else
    value = nil
  end
  limit[1], limit[2] = ARGV[6], ARGV[7]
  rate, interval = tonumber(ARGV[6]), tonumber(ARGV[7])
  changed = 2
end

-- Unless it was granted before the limit was lowered.
if permits > rate and changed == 0 and not redis.call('ZSCORE', log, member) then
  return { ABOVE_RATE, 0, 0, 0, now, rate, interval, changed, 0 }
end

-- What is left of it.

local newest
value, newest = agree(log, value, rate, interval, now, string.sub(member, 2, 17))
if not value then
  return { FOREIGN_MEMBER }
end
if changed > 0 then
  -- Not earlier: limit and value change together or not at all.
  redis.call('HSET', KEYS[1], 'rate', limit[1], 'interval', limit[2], 'keepAliveTime', limit[4] or '0', 'type', limit[3])
end
if newest and (exact or value < permits) then
  local budget = permits + math.max(0, -value) + 1
  local wanted = permits
  if exact then
    budget = math.max(budget, permits + PAGE)
    wanted = math.huge
  end
  local readable
  value, readable = sweep(log, value, rate, interval, now, wanted, budget)
  if not readable then
    redis.call('SET', value_key, value, 'KEEPTTL')
    return { FOREIGN_MEMBER }
  end
end

-- The decision.

local status, wait, repaired = GRANTED, 0, 0
if value >= permits then
  -- NX: a call that was sent twice finds its member and takes nothing more.
  if redis.call('ZADD', log, 'NX', now, member) == 1 then
    value = value - permits
    newest = math.max(newest or now, now)
  end
elseif redis.call('ZSCORE', log, member) then
  -- So does one whose own permits were the last.
  status = GRANTED
elseif permits > rate then
  status = ABOVE_RATE
else
  status = REFUSED
  -- Walk from the oldest entry to the one whose expiry makes enough room. Members that no clock of ours can have
  -- scored (too far ahead of the server's) were granted no later than now: they are set back on the way.
  local latest = ARGV[3] == '' and now + ahead_of(interval) or math.huge
  local need = permits - value
  local start, due = 0, now
  while need > 0 do
    local size = math.min(need, PAGE)
    local page = redis.call('ZRANGE', log, start, start + size - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local held = permits_of(page[i])
      if not held then
        redis.call('SET', value_key, value, 'KEEPTTL')
        return { FOREIGN_MEMBER }
      end
      due = tonumber(page[i + 1])
      if due > latest then
        due = latest
        redis.call('ZADD', log, 'XX', due, page[i])
        repaired = repaired + 1
      end
      need = need - held
      if need <= 0 then
        break
      end
    end
    if #page < 2 * size then
      -- Fewer permits in the log than are missing: the books are whole again when its last entry has expired.
      break
    end
    start = start + size
  end
  wait = due + interval - now
  newest = math.min(newest, latest)
end

-- What is stored.

if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
keep_alive(value_key, log, tonumber(limit[4]) or 0, interval, changed == 1)

local reset = newest and newest + interval - now or 0
return { status, value, wait, reset, now, rate, interval, changed, repaired }
