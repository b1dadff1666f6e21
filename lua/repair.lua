-- Counts the permits left from the log, whatever value says.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  now in ms since the epoch, or empty for the server's clock
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits that had been lost; below zero: permits that were counted twice
--       3  permits left; below zero if more is in use than the rate allows
--
-- Redisson has no such operation. Its release(n) and a resent acquire make value and log disagree;
-- its calls recount only if value exceeds the rate, so that lost permits stay lost.

local now = clock(ARGV[1])
local books, unreadable = read_books()
if not books then
  return unreadable
end
local rate, interval = books.rate, books.interval
local value_key, log, stored = books.value_key, books.log, books.stored

-- All reading comes before the first write: a live foreign entry is an error that changes nothing.
-- An expired one is removed with the others, as what it held is unknown.
local live, expired, entries = 0, 0, 0
while true do
  local page = redis.call('ZRANGE', log, entries, entries + PAGE - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local permits = permits_of(page[i])
    if tonumber(page[i + 1]) <= now - interval then
      expired = expired + (permits or 0)
    elseif permits then
      live = live + permits
    else
      return { FOREIGN_MEMBER }
    end
  end
  entries = entries + #page / 2
  if #page < 2 * PAGE then
    break
  end
end
if entries == 0 and not stored then
  return { 1, 0, rate }
end

redis.call('ZREMRANGEBYSCORE', log, '-inf', now - interval)
local value = rate - live
redis.call('SET', value_key, value, 'KEEPTTL')
keep_alive(KEYS[1], value_key, log, books.keep_alive_time, interval)
-- Permits that expired and were not credited yet were not lost: the next call would have found
-- them.
return { 1, stored and value - stored - expired or 0, value }
