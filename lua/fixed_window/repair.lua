-- Makes sure that the window ends, and that no more than the rate is left in it.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  those of the sliding log's repair; none is used
-- Reply 1  1; negative: an error, alone in the reply
--       2  0, or below zero: permits left above the rate
--       3  permits left
--
-- Redisson has no such operation.

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
local stored, left = open_window(value_key, log, interval)
keep_limit(value_key, left, tonumber(limit[4]) or 0, interval)
if not stored then
  return { 1, 0, rate }
end
local value = math.min(stored, rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
return { 1, value - stored, value }
