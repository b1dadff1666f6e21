-- Releases permits without saying which: the oldest that are in use.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  permits to release, 1 or more
--       2  now in ms since the epoch, or empty for the server's clock
--       3  16 bytes never used before, for entries that a repair adds
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits released: fewer than requested if fewer are in use
--       3  permits left
--
-- RRateLimiter.release of Redisson 3.52.0 to 4.7.0, which credits permits and leaves them in the
-- log, so that they are credited again when they expire. Here the oldest entries shrink: what stays
-- in the log expires later, so the log never understates the permits in use. Not safe to send
-- twice; with a receipt, use settle.lua.

local wanted = tonumber(ARGV[1])
local now = clock(ARGV[2])
local books, unreadable = read_books()
if not books then
  return unreadable
end
local rate, interval = books.rate, books.interval
local value_key, log, stored = books.value_key, books.log, books.stored

local value, newest = agree(log, stored, rate, interval, now, ARGV[3])
if not value then
  return { FOREIGN_MEMBER }
end
local given, readable = 0, true
if newest then
  -- Expired permits are not in use.
  value, readable = sweep(log, value, rate, interval, now, math.huge, math.huge)
end

while readable and newest and given < wanted do
  local page = redis.call('ZRANGE', log, 0, PAGE - 1, 'WITHSCORES')
  if #page == 0 then
    break
  end
  local whole = 0
  for i = 1, #page, 2 do
    local held = permits_of(page[i])
    if not held then
      readable = false
      break
    end
    if given == wanted then
      break
    elseif held <= wanted - given then
      given = given + held
      whole = whole + 1
    else
      -- First those before it: this one may shrink to the bytes of one of them, if an acquire came
      -- twice.
      if whole > 0 then
        redis.call('ZREMRANGEBYRANK', log, 0, whole - 1)
        whole = 0
      end
      -- The same entry with fewer permits: only the count in its bytes changes.
      local rest = struct.pack('<I4', held - (wanted - given))
      -- In this order, or the log could be gone for a moment, and its TTL with it.
      redis.call('ZADD', log, page[i + 1], string.sub(page[i], 1, -5) .. rest)
      redis.call('ZREM', log, page[i])
      given = wanted
      break
    end
  end
  if whole > 0 then
    redis.call('ZREMRANGEBYRANK', log, 0, whole - 1)
  end
end
if redis.call('EXISTS', log) == 0 then
  value = rate
else
  value = value + given
end

if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
if not readable then
  return { FOREIGN_MEMBER }
end
keep_alive(KEYS[1], value_key, log, books.keep_alive_time, interval)
return { 1, given, value }
