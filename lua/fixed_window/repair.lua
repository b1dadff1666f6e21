-- Makes sure that the window ends, and that no more than the rate is left in it.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  those of the sliding log's repair; none is used
-- Reply 1  1; negative: an error, alone in the reply
--       2  0, or below zero: permits left above the rate
--       3  permits left
--
-- Redisson has no such operation.

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local rate, interval, value_key, log = limit.rate, limit.interval, limit.value_key, limit.log
local stored, left = open_window(value_key, log, interval)
keep_limit(value_key, left, limit.keep_alive_time, interval)
if not stored then
  return { 1, 0, rate }
end
local value = math.min(stored, rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
return { 1, value - stored, value }
