-- Gives back what one acquire took, if the window it was taken from is still open.
-- Safe to send once only: nothing tells whether it was given back before.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  permits     2  when the window ends that they were taken from, ms since the epoch by the server's clock
-- Reply 1  permits credited, 0 if there was nothing to give back
--       2  permits left, -1 where nobody counted them
--
-- Redisson has no such operation.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
local rate, interval = rate_and_interval(limit)
local value_key = limit[3] == '1' and KEYS[3] or KEYS[2]
local stored = tonumber(redis.call('GET', value_key) or nil)
local left = stored and redis.call('PTTL', value_key)
if not rate or not stored or left < 0 then
  return { 0, -1 }
end
-- Windows follow each other an interval apart at least; one that was ended by hand may be followed sooner.
local apart = math.abs(clock('') + left - tonumber(ARGV[2]))
if apart > SLACK or 2 * apart >= interval then
  return { 0, -1 }
end
local value = math.min(stored + tonumber(ARGV[1]), rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
return { value - stored, value }
