-- The verbs of a sliding log.
--
-- KEYS, ARGV and Reply: see lib/verbs.lua, and settle
-- RRateLimiter of Redisson 4.7.0 on the same state
--
--- @include lib/state.lua
--- @include sliding_log/state.lua
--- @include sliding_log/entries.lua
--- @include slots/entries.lua, with slots
--- @include lib/verbs.lua

-- Returns the state after crediting all expired permits; or nil and the reply with the error. The
-- state is not `readable` if there was a foreign entry; what was credited before that stays. Of
-- another source than Redis, a limit that is missing is written.
local function read_credited(given, id, source)
  local now = clock(given)
  local book, unreadable = read_book(0, source or 'redis', 4)
  if not book then
    return nil, unreadable
  end
  book.stored = value_of(book.value_key)
  book.now, book.value = now, book.stored
  agree(book, now, id)
  if not book.value then
    return nil, { FOREIGN_MEMBER }
  end
  if book.changed == 1 then
    write_limit(KEYS[1], book.limit)
  end
  book.readable = not book.newest or sweep(book, now, math.huge, math.huge)
  if given == '' and not source then
    set_back(book, now)
  end
  return book
end

-- Ends an operation on a state that is written. Returns the reply, or that with the error.
local function ended(book, reply)
  if not book.readable then
    return { FOREIGN_MEMBER }
  end
  keep_alive(KEYS[1], book.value_key, book.log, book.keep_alive_time, book.interval,
    book.changed == 1)
  return reply
end

-- Returns the exact permits left, and repairs drift. RRateLimiter.availablePermits drops TTLs, may
-- return more than the rate, and reads the whole log.
function verbs.available(now, id)
  local book, unreadable = read_credited(now, id)
  if not book then
    return unreadable
  end
  if book.stored or book.newest then
    write_value(book.value_key, book.stored, book.value)
  end
  return ended(book, { 1, book.value, book.now, book.rate, book.interval })
end

-- RRateLimiter.clearExpire. The keepAliveTime stays, so the next acquire sets a TTL again.
function verbs.clear_expire()
  local cleared = 0
  for _, key in ipairs(KEYS) do
    cleared = math.max(cleared, redis.call('PERSIST', key))
  end
  return cleared
end

-- RRateLimiter.expire, expireIfNotSet, expireIfSet, expireIfGreater and expireIfLess. With a
-- keepAliveTime, the next acquire sets the TTL again, as `keep_alive` says; without, it gives the
-- hash's TTL to the other keys.
function verbs.expire(millis, when)
  local taken = 0
  for _, key in ipairs(KEYS) do
    taken = math.max(taken, expire(key, millis, when))
  end
  return taken
end

-- RRateLimiter.release of Redisson 3.52.0 to 4.7.0 credits permits and leaves them in the log, so
-- that they are credited again when they expire. Here the oldest entries shrink: what stays in the
-- log expires later, so the log never understates the permits in use. Not safe to send twice; with
-- a receipt, use settle.
function verbs.release(permits, now, id)
  local wanted = tonumber(permits)
  local book, unreadable = read_credited(now, id)
  if not book then
    return unreadable
  end
  local log, given = book.log, 0
  while book.readable and book.newest and given < wanted do
    local page, at = redis.call('ZRANGE', log, 0, PAGE - 1, 'WITHSCORES'), 1
    if #page == 0 then
      break
    end
    local held = permits_of(page[at])
    while held and given < wanted and held <= wanted - given do
      given, at = given + held, at + 2
      held = page[at] and permits_of(page[at])
    end
    if at > 1 then
      -- Before the next one shrinks: if an acquire came twice, that may have the same bytes as one
      -- of them then.
      redis.call('ZREMRANGEBYRANK', log, 0, math.floor(at / 2) - 1)
    end
    if held and given < wanted then
      -- The same entry with fewer permits: only the count in its bytes changes.
      local rest = struct.pack('<I4', held - (wanted - given))
      -- Added before the other is removed: an empty log would vanish, and its TTL with it.
      redis.call('ZADD', log, math.floor(page[at + 1]), string.sub(page[at], 1, -5) .. rest)
      redis.call('ZREM', log, page[at])
      given = wanted
    end
    book.readable = held or not page[at]
  end
  local value = redis.call('EXISTS', log) == 0 and book.rate or book.value + given

  write_value(book.value_key, book.stored, value)
  return ended(book, { 1, given, value })
end

-- Counts the permits left from the log, and corrects the value. Redisson has no such operation: its
-- release(n) and a resent acquire make value and log disagree, and its calls count again only if
-- the value exceeds the rate, so lost permits stay lost.
function verbs.repair(now)
  now = clock(now)
  local book, unreadable = read_book(0, 'redis')
  if not book then
    return unreadable
  end
  local rate, log, stored = book.rate, book.log, value_of(book.value_key)

  book.newest = tonumber(redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')[2])
  if not book.newest and not stored then
    return { 1, 0, rate }
  end
  local expired = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', log, '-inf', now - book.interval)) do
    -- Those of a foreign entry are unknown.
    expired = expired + (permits_of(member) or 0)
  end
  -- A live foreign entry is an error that changes nothing.
  local live = live_permits(log, now, book.interval)
  if not live then
    return { FOREIGN_MEMBER }
  end
  -- By any clock: who repairs trusts it.
  set_back(book, now)
  local value = rate - live
  redis.call('SET', book.value_key, value, 'KEEPTTL')
  keep_alive(KEYS[1], book.value_key, log, book.keep_alive_time, book.interval)
  -- Expired permits that were not credited yet are not lost: the next call would have credited
  -- them.
  return { 1, stored and value - stored - expired or 0, value }
end

-- The whole log is read, so that a foreign entry changes nothing.
function in_use(limit, value_key, log, rate, interval, now)
  local stored = value_of(value_key)
  if stored and limit[2] == interval and number_of(limit[1]) then
    -- Below zero if more is in use than the new rate allows, so the new rate holds at once.
    return stored + rate - tonumber(limit[1])
  end
  local live = live_permits(log, clock(now), tonumber(interval))
  return live and live > 0 and rate - live or nil, nil, not live and FOREIGN_MEMBER
end

function begin_life(value_key, log, keep_alive_time, interval, is_new)
  if is_new and redis.call('EXISTS', log) == 0 then
    -- It outlived an earlier limiter. Redisson throws where less is left than it asks for.
    redis.call('UNLINK', value_key)
  end
  keep_alive(KEYS[1], value_key, log, keep_alive_time, interval, true)
end

-- Charges the permits of a further member, beyond what the acquire took.
local function charge(member, given, source)
  -- Credited before: with the new entry in the log, it would not show any more that what has
  -- expired was credited already.
  local book, unreadable = read_credited(given, string.sub(member, 2, 17), source)
  if not book then
    return unreadable
  end
  local charged, now = 0, book.now
  book.added, book.readable = {}, book.readable and begin_notes(book, 1, now, true)
  if book.readable and note(book, { member = member, permits = permits_of(member) }, now) then
    charged = permits_of(member)
    end_notes(book)
  end
  -- The permits were used, so they count even if the value falls below zero: a debt.
  redis.call('SET', book.value_key, book.value - charged, 'KEEPTTL')
  return ended(book, { 1, -charged, now })
end

-- Settles what one acquire took: releases all or a part of it, or charges more. Safe to send twice
-- while its members live, and to release what an acquire took that never arrived. With slots
-- neither is safe: a slot's member does not show what was released before.
--
-- ARGV  taken   the member that the acquire was sent with; empty to charge more
--       now
--       rest    to release: the member that replaces it, of fewer permits; empty: none does
--               to charge more: the member of what is added
--       rate, interval, rate_type, keep_alive_time   the limit that is written if there is none and
--               more is charged; all empty to write none
--       With slots, only the permits of the members are used, and their id if the slot's member is
--       full or cannot be found; and there are two more arguments:
--       ends    the end of the slot of the acquire; ignored to charge more, which counts from now
-- on
--       and the number of slots of an interval, see slots/entries.lua
-- Reply to charge more has a third number: the time that was used, ms since the epoch
--
-- Redisson has no such operation: its release(n) credits without changing the log, and so admits
-- too much later.
function verbs.settle(taken, now, rest, rate, interval, rate_type, keep_alive_time, ends)
  if taken == '' then
    -- A response can outlast its idle limiter, which expires. Then the limit is written again, so
    -- that the debt counts.
    return charge(rest, now, rate == '' and 'redis' or 'init')
  end
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  local value_key, log = keys_of(limit[3], 0)
  local credited = take_back(log, taken, rest, ends)
  if not credited then
    return { 1, 0 }
  end
  local stored = value_of(value_key)
  local book = { log = log, rate = number_of(limit[1]), interval = interval_of(limit[2]) }
  -- If only the limit is gone, value and log must agree when it is written again.
  if book.rate and book.interval then
    if redis.call('EXISTS', log) == 0 then
      book.value = book.rate
    else
      book.value = stored and stored + credited
      agree(book, clock(now), string.sub(taken, 2, 17))
    end
  end
  if book.value then
    redis.call('SET', value_key, book.value, 'KEEPTTL')
    keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, book.interval)
  elseif stored then
    -- Without a value, the next call counts it from the log, where these permits alone would seem
    -- to be in use.
    redis.call('INCRBY', value_key, credited)
  end
  return { 1, credited }
end

return verbs[ARGV[1]](unpack(ARGV, 2))
