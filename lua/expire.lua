-- Sets the expiry of a limiter.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  ms from now
--       2  when: empty for always, NX without, XX with, GT below, LT above an earlier time
-- Reply 1 if any of the keys took it, else 0
--
-- RRateLimiter.expire, expireIfNotSet, expireIfSet, expireIfGreater and expireIfLess of Redisson
-- 4.7.0. With a keep-alive time the next acquire sets the TTL anew; without, it passes the hash's
-- on to the other keys.

local taken = 0
for _, key in ipairs(KEYS) do
  taken = math.max(taken, expire(key, ARGV[1], ARGV[2]))
end
return taken
