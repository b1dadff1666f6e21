-- Removes the expiry of a limiter.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  none
-- Reply 1 if any of the keys had a TTL, else 0
--
-- RRateLimiter.clearExpire of Redisson 4.7.0. A keep-alive time stays: the next acquire sets a TTL
-- again.

local cleared = 0
for _, key in ipairs(KEYS) do
  cleared = math.max(cleared, redis.call('PERSIST', key))
end
return cleared
