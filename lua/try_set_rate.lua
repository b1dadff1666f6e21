-- Sets the limit if none is set.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1 rate   2 interval, ms   3 type   4 keepAliveTime, ms
-- Reply 1 if it was set, 0 if there was one, which is left as it is
--
-- RRateLimiter.trySetRate of Redisson 4.7.0, which adds keepAliveTime to a limit written before
-- 3.38.0 and returns 0.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
if limit[1] and limit[2] and limit[3] then
  return 0
end
redis.call('HSETNX', KEYS[1], 'rate', ARGV[1])
redis.call('HSETNX', KEYS[1], 'interval', ARGV[2])
redis.call('HSETNX', KEYS[1], 'keepAliveTime', ARGV[4])
redis.call('HSETNX', KEYS[1], 'type', ARGV[3])

local value_key, log = KEYS[2], KEYS[4]
if (limit[3] or ARGV[3]) == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
keep_alive(KEYS[1], value_key, log, tonumber(ARGV[4]), tonumber(ARGV[2]), true)
return 1
