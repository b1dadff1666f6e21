-- Removes the expiry of a limiter. Its window ends all the same.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  none
-- Reply 1 if it would have expired, else 0
--
-- RRateLimiter.clearExpire of Redisson 3.13.1 and 3.13.2. A keep-alive time stays: the next acquire
-- sets a TTL again.

return redis.call('PERSIST', KEYS[1])
