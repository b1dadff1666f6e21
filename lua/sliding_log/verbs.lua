-- The verbs of a sliding log.
--
-- KEYS, ARGV and Reply: see lib/verbs.lua, and settle
-- RRateLimiter of Redisson 4.7.0 on the same state
--
--- @include lib/state.lua
--- @include sliding_log/entries.lua
--- @include slots/entries.lua, with slots
--- @include lib/verbs.lua

-- Returns the state after crediting all expired permits; or nil and the reply with the error. The
-- state is not `readable` if there was a foreign entry; what was credited before that stays.
local function read_credited(given, id)
  local now = clock(given)
  local book, unreadable = read_books()
  if not book then
    return nil, unreadable
  end
  book.now = now
  book.value, book.newest = agree(book.log, book.stored, book.rate, book.interval, now, id)
  if not book.value then
    return nil, { FOREIGN_MEMBER }
  end
  book.readable = true
  if book.newest then
    book.value, book.readable =
      sweep(book.log, book.value, book.rate, book.interval, now, math.huge, math.huge)
  end
  if given == '' then
    set_back(book.log, book.newest, now + ahead_of(book.interval))
  end
  return book
end

-- Returns the exact permits left, and repairs drift. RRateLimiter.availablePermits drops TTLs, may
-- return more than the rate, and reads the whole log.
function verbs.available(now, id)
  local book, unreadable = read_credited(now, id)
  if not book then
    return unreadable
  end
  if book.value ~= book.stored and (book.stored or book.newest) then
    redis.call('SET', book.value_key, book.value, 'KEEPTTL')
  end
  if not book.readable then
    return { FOREIGN_MEMBER }
  end
  keep_alive(KEYS[1], book.value_key, book.log, book.keep_alive_time, book.interval)
  return { 1, book.value, book.now, book.rate, book.interval }
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

-- Releases up to `wanted` permits of the oldest entries on a page, and returns how many; false as
-- well if it met a foreign entry.
local function release_of(page, log, wanted)
  local given, whole, readable = 0, 0, true
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
      -- The entries before it are removed first: if an acquire came twice, this one may shrink to
      -- the same bytes as one of them.
      if whole > 0 then
        redis.call('ZREMRANGEBYRANK', log, 0, whole - 1)
        whole = 0
      end
      -- The same entry with fewer permits: only the count in its bytes changes.
      local rest = struct.pack('<I4', held - (wanted - given))
      -- Added before the other is removed: an empty log would vanish, and its TTL with it.
      redis.call('ZADD', log, math.floor(page[i + 1]), string.sub(page[i], 1, -5) .. rest)
      redis.call('ZREM', log, page[i])
      given = wanted
      break
    end
  end
  if whole > 0 then
    redis.call('ZREMRANGEBYRANK', log, 0, whole - 1)
  end
  return given, readable
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
  local log, value, given, readable = book.log, book.value, 0, book.readable
  while readable and book.newest and given < wanted do
    local page = redis.call('ZRANGE', log, 0, PAGE - 1, 'WITHSCORES')
    if #page == 0 then
      break
    end
    local released
    released, readable = release_of(page, log, wanted - given)
    given = given + released
  end
  value = redis.call('EXISTS', log) == 0 and book.rate or value + given

  if value ~= book.stored then
    redis.call('SET', book.value_key, value, 'KEEPTTL')
  end
  if not readable then
    return { FOREIGN_MEMBER }
  end
  keep_alive(KEYS[1], book.value_key, log, book.keep_alive_time, book.interval)
  return { 1, given, value }
end

-- Counts the permits left from the log, and corrects the value. Redisson has no such operation: its
-- release(n) and a resent acquire make value and log disagree, and its calls count again only if
-- the value exceeds the rate, so lost permits stay lost.
function verbs.repair(now)
  now = clock(now)
  local book, unreadable = read_books()
  if not book then
    return unreadable
  end
  local rate, log, stored = book.rate, book.log, book.stored

  -- The whole log is read before the first write: a live foreign entry is an error that changes
  -- nothing. An expired foreign entry is removed like the others, as its permits are unknown.
  local live, expired, entries, newest = 0, 0, 0, nil
  repeat
    local page = redis.call('ZRANGE', log, entries, entries + PAGE - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local permits = permits_of(page[i])
      if tonumber(page[i + 1]) <= now - book.interval then
        expired = expired + (permits or 0)
      elseif permits then
        live = live + permits
      else
        return { FOREIGN_MEMBER }
      end
    end
    entries, newest = entries + math.floor(#page / 2), tonumber(page[#page]) or newest
  until #page < 2 * PAGE
  if entries == 0 and not stored then
    return { 1, 0, rate }
  end

  redis.call('ZREMRANGEBYSCORE', log, '-inf', now - book.interval)
  -- By any clock: who repairs trusts it.
  set_back(log, newest, now + ahead_of(book.interval))
  local value = rate - live
  redis.call('SET', book.value_key, value, 'KEEPTTL')
  keep_alive(KEYS[1], book.value_key, log, book.keep_alive_time, book.interval)
  -- Expired permits that were not credited yet are not lost: the next call would have credited
  -- them.
  return { 1, stored and value - stored - expired or 0, value }
end

-- RRateLimiter.setRate(args) and updateRate(args). Redisson's forget the permits in use above a
-- lowered rate, so that the new rate never holds under load, and leave an old TTL running if the
-- keepAliveTime is removed.
function verbs.set_rate(rate, interval, rate_type, keep_alive_time, now, keep, existing)
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if existing == '1' and not (limit[1] and limit[2] and limit[3]) then
    return 0
  end
  local value_key, log = keys_of(rate_type)

  -- The whole log is read before the first write, so that a foreign entry changes nothing.
  local value
  if keep == '1' and (not limit[3] or limit[3] == rate_type) then
    local stored = value_of(value_key)
    if stored and limit[2] == interval and number_of(limit[1]) then
      -- Below zero if more is in use than the new rate allows, so the new rate holds at once.
      value = stored + tonumber(rate) - tonumber(limit[1])
    else
      local live = live_permits(log, clock(now), tonumber(interval))
      if not live then
        return FOREIGN_MEMBER
      end
      value = live > 0 and tonumber(rate) - live or nil
    end
  end

  write_limit(KEYS[1], { rate, interval, rate_type, keep_alive_time })
  if limit[3] and limit[3] ~= rate_type then
    redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  elseif value then
    redis.call('SET', value_key, value, 'KEEPTTL')
  else
    redis.call('UNLINK', value_key, log)
  end
  keep_alive(KEYS[1], value_key, log, tonumber(keep_alive_time), tonumber(interval), true)
  return 1
end

-- RRateLimiter.trySetRate.
function verbs.try_set_rate(rate, interval, rate_type, keep_alive_time)
  local limit_type = complete_limit(rate, interval, rate_type, keep_alive_time)
  if not limit_type then
    return 0
  end
  local value_key, log = keys_of(limit_type)
  if redis.call('EXISTS', log) == 0 then
    -- It outlived an earlier limiter. Redisson throws where less is left than it asks for.
    redis.call('UNLINK', value_key)
  end
  keep_alive(KEYS[1], value_key, log, tonumber(keep_alive_time), tonumber(interval), true)
  return 1
end

-- Charges the permits of a further member, beyond what the acquire took.
local function charge(limit, value_key, log, member, now, created)
  local rate, interval = number_of(limit[1]), interval_of(limit[2])
  if not rate or not interval then
    return { UNREADABLE }
  end
  now = clock(now)
  local book = { log = log, rate = rate, interval = interval, added = {} }
  book.value, book.newest =
    agree(log, value_of(value_key), rate, interval, now, string.sub(member, 2, 17))
  if not book.value then
    return { FOREIGN_MEMBER }
  end
  if created then
    write_limit(KEYS[1], limit)
  end
  local charged, readable = 0, true
  if book.newest then
    -- Before: with the new entry in the log, it would not show any more that what has expired was
    -- credited already.
    book.value, readable = sweep(log, book.value, rate, interval, now, math.huge, math.huge)
  end
  readable = readable and begin_notes(book, 1, now, true)
  if readable and note(book, { member = member, permits = permits_of(member) }, now) then
    charged = permits_of(member)
    end_notes(book)
  end
  -- The permits were used, so they count even if the value falls below zero: a debt.
  redis.call('SET', value_key, book.value - charged, 'KEEPTTL')
  if not readable then
    return { FOREIGN_MEMBER }
  end
  keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval, created)
  return { 1, -charged, now }
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
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  local created = false
  if taken == '' and not (limit[1] and limit[2] and limit[3]) then
    -- A response can outlast its idle limiter, which expires. Then the limit is written again, so
    -- that the debt counts.
    if rate == '' then
      return { UNINITIALIZED }
    end
    limit = { limit[1] or rate, limit[2] or interval, limit[3] or rate_type,
      limit[4] or keep_alive_time }
    created = true
  end
  local value_key, log = keys_of(limit[3])
  if taken == '' then
    return charge(limit, value_key, log, rest, now, created)
  end

  local credited = take_back(log, taken, rest, ends)
  if not credited then
    return { 1, 0 }
  end
  local stored, value = value_of(value_key), nil
  rate, interval = number_of(limit[1]), interval_of(limit[2])
  if not rate or not interval then
    -- Only the limit is gone: value and log must agree when it is written again.
    value = nil
  elseif redis.call('EXISTS', log) == 0 then
    value = rate
  else
    value = agree(log, stored and stored + credited, rate, interval, clock(now),
      string.sub(taken, 2, 17))
  end
  if value then
    redis.call('SET', value_key, value, 'KEEPTTL')
    keep_alive(KEYS[1], value_key, log, tonumber(limit[4]) or 0, interval)
  elseif stored then
    -- Without a value, the next call counts it from the log, where these permits alone would seem
    -- to be in use.
    redis.call('INCRBY', value_key, credited)
  end
  return { 1, credited }
end

return verbs[ARGV[1]](unpack(ARGV, 2))
