-- Counts the permits that are free now. Opens no window.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  those of the sliding log's available; none is used
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits left; below zero after a lowered rate
--       3  the server's time, ms since the epoch
--       4  rate and  5  interval, ms, in force
--
-- RRateLimiter.availablePermits of Redisson 3.12.1 to 3.13.2, which begins a window.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
if not (limit[1] and limit[2] and limit[3]) then
  return { UNINITIALIZED }
end
local rate, interval = rate_and_interval(limit)
if not rate then
  return { UNREADABLE }
end
local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
local value, left = open_window(value_key, log, interval)
keep_limit(value_key, left, tonumber(limit[4]) or 0, interval)
return { 1, math.min(value or rate, rate), clock(''), rate, interval }
