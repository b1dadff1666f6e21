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

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local rate, interval, value_key, log = limit.rate, limit.interval, limit.value_key, limit.log
local value, left = open_window(value_key, log, interval)
keep_limit(value_key, left, limit.keep_alive_time, interval)
return { 1, math.min(value or rate, rate), clock(''), rate, interval }
