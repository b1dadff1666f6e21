-- Sets the expiry of a limit. What is in use keeps its own: an interval later at most.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  ms from now
--       2  when: empty for always, NX without, XX with, GT below, LT above an earlier time
-- Reply 1 if the limit took it, else 0; a rule's limiter has no limit of its own, and expires by
--       itself
--
-- RRateLimiter.expire of Redisson 4.7.0, adapted. With a keep-alive time the next acquire sets the
-- TTL anew.

return expire(KEYS[1], ARGV[1], ARGV[2])
