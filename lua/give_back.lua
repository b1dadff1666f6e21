-- Gives back, whole, what one acquire took: removes its member and credits its permits, if it is still there.
-- Safe to send again, and safe to send for an acquire that never arrived.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  the member that the acquire was sent with
--       2  now in ms since the epoch, or empty for the server's clock
-- Reply 1  permits credited, 0 if there was nothing to give back
--       2  permits left, -1 where nobody counted them
--
-- Redisson has no such operation: its release(n) credits without touching the log, and so admits too much later.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
if redis.call('ZREM', log, ARGV[1]) == 0 then
  return { 0, -1 }
end

local permits = permits_of(ARGV[1])
local rate, interval = number_of(limit[1]), number_of(limit[2])
local stored = tonumber(redis.call('GET', value_key) or nil)
local value
if not rate or not interval then
  -- The limit itself is gone: whoever writes it anew finds value and log in agreement.
  value = nil
elseif redis.call('EXISTS', log) == 0 then
  value = rate
else
  value = agree(log, stored and stored + permits, rate, interval, clock(ARGV[2]), string.sub(ARGV[1], 2, 17))
end
if value then
  redis.call('SET', value_key, value, 'KEEPTTL')
  keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval)
  return { permits, value }
end
if not stored then
  -- Left to be counted from the log: these permits alone would pass for all that is free.
  return { permits, -1 }
end
return { permits, redis.call('INCRBY', value_key, permits) }
