-- Counts the permits that are free now, exactly, and heals what it finds on the way.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  now in ms since the epoch, or empty for the server's clock
--       2  16 bytes never used before, for entries that a repair adds
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits left; below zero after a lowered rate
--       3  the time that was used, ms since the epoch
--       4  rate and  5  interval, ms, in force
--
-- RRateLimiter.availablePermits of Redisson 4.7.0, which drops TTLs, does not cap at the rate and reads O(log) members.

local now = clock(ARGV[1])
local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
if not (limit[1] and limit[2] and limit[3]) then
  return { UNINITIALIZED }
end
local rate, interval = number_of(limit[1]), number_of(limit[2])
if not rate or not interval then
  return { UNREADABLE }
end

local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
local stored = tonumber(redis.call('GET', value_key) or nil)

local value, newest = agree(log, stored, rate, interval, now, ARGV[2])
if not value then
  return { FOREIGN_MEMBER }
end
local readable = true
if newest then
  value, readable = sweep(log, value, rate, interval, now, math.huge, math.huge)
end

if value ~= stored and (stored or newest) then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
if not readable then
  return { FOREIGN_MEMBER }
end
keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval)
return { 1, value, now, rate, interval }
