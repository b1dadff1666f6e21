-- Gives back permits of the open window without saying which.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  permits to give back; those of the sliding log's release behind it are not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits given back: fewer where not as many are in use
--       3  permits left
--
-- RRateLimiter.release of Redisson 4.7.0 as far as there is one: releases that counted by windows had none. Safe to send
-- once only; whoever has a receipt uses give_back.lua.

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
if not stored then
  return { 1, 0, rate }
end
local before = math.min(stored, rate)
local value = math.min(before + tonumber(ARGV[1]), rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
keep_limit(value_key, left, tonumber(limit[4]) or 0, interval)
return { 1, value - before, value }
