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
-- RRateLimiter.availablePermits of Redisson 4.7.0, which drops TTLs, may return more than the rate,
-- and reads O(log) members.

local now = clock(ARGV[1])
local books, unreadable = read_books()
if not books then
  return unreadable
end
local rate, interval = books.rate, books.interval
local value_key, log, stored = books.value_key, books.log, books.stored

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
keep_alive(KEYS[1], value_key, log, books.keep_alive_time, interval)
return { 1, value, now, rate, interval }
