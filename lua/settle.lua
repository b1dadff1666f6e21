-- Settles what one acquire took: releases all or a part of it, or charges more. Safe to send twice
-- while its members live; a release is also safe for an acquire that never arrived.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  the member that the acquire was sent with; empty to charge more
--       2  now in ms since the epoch, or empty for the server's clock
--       3  to release: the member that replaces it, of fewer permits; empty: none does
--          to charge more: the member of what is added
--       4  rate   5  interval, ms   6  type   7  keepAliveTime, ms; written if there is no limit to
--          charge more against, all empty for none
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits credited, below zero if charged; 0 if there was nothing to do
--       3  to charge more: the time that was used, ms since the epoch
--
-- Redisson has no such operation: its release(n) credits without changing the log, and so admits
-- too much later.

local taken, rest = ARGV[1], ARGV[3]
local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local created = false
if taken == '' and not (limit[1] and limit[2] and limit[3]) then
  -- An idle limiter expires, and a response can last longer: the debt must find it again.
  if ARGV[4] == '' then
    return { UNINITIALIZED }
  end
  limit = { limit[1] or ARGV[4], limit[2] or ARGV[5], limit[3] or ARGV[6], limit[4] or ARGV[7] }
  created = true
end
local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end
local rate, interval = number_of(limit[1]), interval_of(limit[2])

if taken == '' then
  if not rate or not interval then
    return { UNREADABLE }
  end
  local now = clock(ARGV[2])
  local stored = value_of(value_key)
  local book = { log = log, rate = rate, interval = interval, added = {} }
  book.value, book.newest = agree(log, stored, rate, interval, now, string.sub(rest, 2, 17))
  if not book.value then
    return { FOREIGN_MEMBER }
  end
  if created then
    redis.call('HSET', KEYS[1], 'rate', limit[1], 'interval', limit[2],
      'keepAliveTime', limit[4] or '0', 'type', limit[3])
  end
  local charged = 0
  local readable = begin_notes(book, 1, now)
  if readable and note(book, { member = rest, permits = permits_of(rest) }, now) then
    charged = permits_of(rest)
    end_notes(book)
  end
  -- Debt: it was used, so it also counts below zero.
  redis.call('SET', value_key, book.value - charged, 'KEEPTTL')
  if not readable then
    return { FOREIGN_MEMBER }
  end
  keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval, created)
  return { 1, -charged, now }
end

local credited = take_back(log, taken, rest)
if not credited then
  return { 1, 0 }
end

local stored = value_of(value_key)
local value
if not rate or not interval then
  -- The limit itself is gone: value and log must agree when it is written anew.
  value = nil
elseif redis.call('EXISTS', log) == 0 then
  value = rate
else
  value = agree(log, stored and stored + credited, rate, interval,
    clock(ARGV[2]), string.sub(taken, 2, 17))
end
if value then
  redis.call('SET', value_key, value, 'KEEPTTL')
  keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval)
elseif stored then
  -- Without a value, it will be counted from the log: these permits alone would seem to be all.
  redis.call('INCRBY', value_key, credited)
end
return { 1, credited }
