-- Lets a limit vanish after a time. What is in use does not: it is past an interval later at most.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  ms from now
--       2  when: empty for always, NX without, XX with, GT below, LT above an earlier time
-- Reply 1 if the limit took it, else 0; a limiter that a rule made has none of its own, and vanishes by itself
--
-- RRateLimiter.expire of Redisson 4.7.0 as far as there is one. With a keep-alive time the next acquire sets the TTL anew.

return expire(KEYS[1], ARGV[1], ARGV[2])
