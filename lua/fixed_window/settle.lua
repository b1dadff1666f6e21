-- Settles what one acquire took: releases permits if the window they were taken from is still open,
-- or charges more. Not safe to send twice: whether it was settled before is not stored.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  permits to release; below zero: to charge, in the open window or in a new one
--       2  the end of the window they were taken from, ms since the epoch by the server's clock
--       3  rate   4  interval, ms   5  type   6  keepAliveTime, ms; written if there is no limit to
--          charge more against, all empty for none
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits credited, below zero if charged; 0 if there was nothing to do
--
-- Redisson has no such operation.

local credited = tonumber(ARGV[1])
local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local created = false
if not (limit[1] and limit[2] and limit[3]) then
  -- An idle limiter expires, and a response can last longer: the debt must find it again.
  if credited >= 0 or ARGV[3] == '' then
    return { UNINITIALIZED }
  end
  limit = { ARGV[3], ARGV[4], ARGV[5], ARGV[6] }
  redis.call('HSET', KEYS[1], 'rate', limit[1], 'interval', limit[2],
    'keepAliveTime', limit[4], 'type', limit[3])
  created = true
end
local rate, interval = rate_and_interval(limit)
if not rate then
  return { UNREADABLE }
end
local value_key = limit[3] == '1' and KEYS[3] or KEYS[2]

if credited < 0 then
  -- Debt: it was used, so it also counts below zero.
  local log = limit[3] == '1' and KEYS[5] or KEYS[4]
  local value = open_window(value_key, log, interval)
  if value then
    redis.call('SET', value_key, math.min(value, rate) + credited, 'KEEPTTL')
  else
    redis.call('SET', value_key, rate + credited, 'PX', interval)
    redis.call('UNLINK', log)
  end
  keep_limit(value_key, redis.call('PTTL', value_key), tonumber(limit[4]) or 0, interval, created)
  return { 1, credited }
end

local stored = value_of(value_key)
local left = stored and redis.call('PTTL', value_key)
if not stored or left < 0 then
  return { 1, 0 }
end
-- Windows are at least an interval apart; after one that was ended by hand, the next may begin
-- sooner.
local apart = math.abs(clock('') + left - tonumber(ARGV[2]))
if apart > SLACK or 2 * apart >= interval then
  return { 1, 0 }
end
local value = math.min(stored + credited, rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
return { 1, value - stored }
