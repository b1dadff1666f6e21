-- Sets the limit if none is set.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1 rate   2 interval, ms   3 type   4 keepAliveTime, ms
-- Reply 1 if it was set, 0 if there was one, which is left as it is
--
-- RRateLimiter.trySetRate of Redisson 4.7.0.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
if limit[1] and limit[2] and limit[3] then
  return 0
end
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2],
  'keepAliveTime', ARGV[4], 'type', ARGV[3])
keep_limit(tonumber(ARGV[4]), 0, true)
return 1
