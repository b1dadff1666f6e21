-- Sets the expiry of a limiter, and of its window no later.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  ms from now
--       2  when: empty for always, NX without, XX with, GT below, LT above an earlier time
-- Reply 1 if the limit took it, else 0
--
-- RRateLimiter.expire of Redisson 3.13.1 and 3.13.2, which can also extend the window. With a
-- keep-alive time the next acquire sets the TTL anew.

local taken = expire(KEYS[1], ARGV[1], ARGV[2])
if taken == 1 then
  for _, value_key in ipairs({ KEYS[2], KEYS[3] }) do
    local left = redis.call('PTTL', value_key)
    if left == -1 or left > tonumber(ARGV[1]) then
      redis.call('PEXPIRE', value_key, ARGV[1])
    end
  end
end
return taken
