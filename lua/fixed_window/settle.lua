-- Settles what one acquire took: gives back permits if the window they were taken from is still open, or charges more.
-- Safe to send once only: nothing tells whether it was settled before.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  permits to give back; below zero: to charge, in whatever window is open, or is begun by it
--       2  when the window ends that they were taken from, ms since the epoch by the server's clock
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits credited, below zero if charged; 0 if there was nothing to do
--
-- Redisson has no such operation.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
local rate, interval = rate_and_interval(limit)
local value_key = limit[3] == '1' and KEYS[3] or KEYS[2]
if not rate then
  return { UNINITIALIZED }
end
local credited = tonumber(ARGV[1])

if credited < 0 then
  -- Debt: it was used, so it counts also below zero.
  local value = open_window(value_key, limit[3] == '1' and KEYS[5] or KEYS[4], interval)
  if value then
    redis.call('SET', value_key, math.min(value, rate) + credited, 'KEEPTTL')
  else
    redis.call('SET', value_key, rate + credited, 'PX', interval)
  end
  return { 1, credited }
end

local stored = tonumber(redis.call('GET', value_key) or nil)
local left = stored and redis.call('PTTL', value_key)
if not stored or left < 0 then
  return { 1, 0 }
end
-- Windows follow each other an interval apart at least; one that was ended by hand may be followed sooner.
local apart = math.abs(clock('') + left - tonumber(ARGV[2]))
if apart > SLACK or 2 * apart >= interval then
  return { 1, 0 }
end
local value = math.min(stored + credited, rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
return { 1, value - stored }
