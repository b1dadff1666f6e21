-- Takes permits of one limiter for one caller or several, or reports when they will be free. The
-- hot path.
--
-- KEYS  1-5, see lib/state.lua and state.lua
-- ARGV  those of sliding_log/acquire_list.lua for one limiter; not used are 1, now, as windows end
--       by the server's clock, 2, as the permits left are always exact, and the callers' members,
--       as there is no log:
--       3  whose limit counts: 'redis' the stored one; 'init' the stored one, else the one given;
--          'code' the one given, 'keep' the same but a differing stored one is left for now
--       4  rate   5  interval, ms   6  type   7  keepAliveTime, ms; all empty with 'redis'
--       8, 9, 10, 11, and so on in fours, for each caller in the order of arrival:
--          '1' if it waits in the queue, else '0';  permits to take, 1 .. 2^32 - 1;  not used;
--          not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  the server's time, ms since the epoch
--       3  permits left after this call
--       4  ms until all permits are free; 0 if they are. One ms less is when the window ends
--       5  rate and  6  interval, ms, in force
--       7  0 nothing, 1 the limit was created, 2 the limit was rewritten
--       8  0: there are no scores to reset
--       9  ms until at least one more permit is free: as 4
--       10, 11, and so on in pairs, for each caller:
--          1 granted, 0 refused, 2 refused whenever it comes: more permits than the rate
--          ms until its permits are free, also for the callers that wait before it; 0 if granted
--
-- RRateLimiter.tryAcquire of Redisson 3.7.1 to 3.13.2 on the same state, except that the wait it
-- reports ends just after the window instead of with it. Each caller is granted whole or not at
-- all. A caller that waits in the queue and does not fit blocks those behind it; a caller that does
-- not wait takes what is left. Not safe to send twice, as grants cannot be told apart.
--
--- @include lib/state.lua
--- @include lib/callers.lua
--- @include fixed_window/state.lua

local now = clock('')
local source = ARGV[3]

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
local rate, interval = rate_and_interval(limit)
if not rate then
  return { UNREADABLE }
end
local raised = 0
if source == 'code' and (limit[1] ~= ARGV[4] or limit[2] ~= ARGV[5]) then
  limit[1], limit[2] = ARGV[4], ARGV[5]
  raised = tonumber(ARGV[4]) - rate
  rate, interval = tonumber(ARGV[4]), tonumber(ARGV[5])
  changed = 2
end

local reply = { 1, now, 0, 0, rate, interval, changed, 0, 0 }
if changed == 0 and not is_possible(rate) then
  decide(reply, 0, rate)
  return reply
end

-- The decisions.

local value_key, log = keys_of(limit[3])
local stored, left = open_window(value_key, log, interval)
if changed > 0 then
  -- Not earlier: a key of another type under the value's name is an error, and must leave the limit
  -- as it is.
  write_limit(KEYS[1], limit)
end
-- A lowered rate holds at once: value may fall below zero.
local before = stored and math.min(stored + raised, rate) or rate
local value, refused = decide(reply, before, rate)

-- The stored state. A call that takes nothing opens no window.

if stored then
  if value ~= stored then
    redis.call('SET', value_key, value, 'KEEPTTL')
  end
elseif value < rate then
  redis.call('SET', value_key, value, 'PX', interval)
  -- A sliding log left it, and it no longer counts.
  redis.call('UNLINK', log)
  left = interval
end
left = keep_limit(value_key, left, tonumber(limit[4]) or 0, interval, changed == 1)

for _, caller in ipairs(refused) do
  -- More than the rate is never free in one window.
  reply[caller.place] = left + 1 + math.floor((caller.needs - 1) / rate) * (interval + 1)
end
reply[3] = value
reply[4] = value < rate and left + 1 or 0
reply[9] = reply[4]
return reply
