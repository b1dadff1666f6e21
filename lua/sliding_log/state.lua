-- Functions on the log and on what belongs to it. Joined behind lib/state.lua.
--
-- KEYS are those of lib/state.lua

-- Redisson's members end in a 32-bit count of permits, little-endian, behind an id. The size shows
-- the generation: 8 (3.13.3-3.16.3), 20 (3.16.4-3.16.8), 13 (3.17.0-3.20.x) and 21 bytes (since
-- 3.21.0, and here).
local MEMBER_SIZES = { [8] = true, [13] = true, [20] = true, [21] = true }

-- The most entries that are read at a time, if their number is not known.
local PAGE = 100

-- The most members that a repair adds: 4 * 10^11 permits.
local RESTORED = 100

-- Returns the permits that one member holds; nil for a member that no Redisson wrote.
local function permits_of(member)
  if not MEMBER_SIZES[#member] then
    return nil
  end
  -- Lua 5.4 makes a float of it, and would print "5.0".
  return math.floor((struct.unpack('<I4', member, #member - 3)))
end

-- Returns the score offset: the most by which a score may be later than its grant. It is part of
-- the format.
local function ahead_of(interval)
  return math.floor(interval / 10)
end

-- Removes expired entries, and returns the permits of the others; nil if a member is foreign, and
-- then nothing is removed. It reads the whole log: only for repairs and changed intervals.
local function live_permits(log, now, interval)
  local sum = 0
  local expired = '(' .. string.format('%.0f', now - interval)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', log, expired, '+inf')) do
    local permits = permits_of(member)
    if not permits then
      return nil
    end
    sum = sum + permits
  end
  redis.call('ZREMRANGEBYSCORE', log, '-inf', now - interval)
  return sum
end

-- Sets back the scores of a book that lie further ahead than the score offset, which a wrong clock
-- has written: they were granted no later than now. Returns how many, and the newest entry has its
-- score then. Not only those that this call waits for, as the caller who waits asks no earlier; but
-- the oldest 5,000, as a server answers no other call meanwhile. By the newest one the next call
-- knows that there are more.
local function set_back(book, now)
  local log, latest, count, foreign = book.log, now + ahead_of(book.interval), 0, 0
  while book.newest and book.newest > latest and count < 5000 do
    local page = redis.call('ZRANGEBYSCORE', log, '(' .. string.format('%.0f', latest), '+inf',
      'LIMIT', foreign, PAGE)
    for _, member in ipairs(page) do
      if permits_of(member) then
        redis.call('ZADD', log, 'XX', latest, member)
        count = count + 1
      else
        foreign = foreign + 1
      end
    end
    if #page < PAGE then
      book.newest = latest
    end
  end
  return count
end

-- Brings value and log of a book into agreement. Its value is what the value key holds, or nil to
-- count it from the log, and afterwards the permits left; nil if a member is foreign. `newest` is
-- the score of the newest entry, nil if the log is empty; `restored` is true if the log was created
-- now, and so has no TTL. `id` is 16 bytes of the caller's: its second half makes the members of
-- two callers differ.
local function agree(book, now, id)
  local log, value, rate, interval = book.log, book.value, book.rate, book.interval
  local newest = redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
  newest = newest and math.floor(newest)
  if newest and newest + interval <= now then
    -- The whole log has expired. Dropping it takes O(1) here, and repairs any drift.
    redis.call('UNLINK', log)
    value, newest = rate, nil
  elseif not value or value > rate then
    local live = not newest and 0 or live_permits(log, now, interval)
    value = live and rate - live
  elseif value < rate and not newest then
    -- Entries for permits that are in use for an unknown time, as if they were granted now. Their
    -- number is bounded, to bound the work: permits beyond it are free when the whole log has
    -- expired.
    local permits, chunk = rate - value, 0
    while permits > 0 and chunk < RESTORED do
      local part = math.min(permits, 4294967295)
      local marked = 'heal:\0\0' .. string.char(chunk) .. string.sub(id, 9, 16)
      redis.call('ZADD', log, now, struct.pack('<Bc0I4', 16, marked, part))
      permits, chunk = permits - part, chunk + 1
    end
    newest, book.restored = now, true
  end
  book.value, book.newest = value, newest
end

-- Credits expired permits to the value of a book, oldest first, until `wanted` are left or `budget`
-- members that hold permits are removed. Returns false if it met a foreign member; what was
-- credited before that stays.
local function sweep(book, now, wanted, budget)
  local log, expired = book.log, now - book.interval
  while book.value < wanted and budget > 0 do
    local size = math.min(budget, PAGE)
    local page = redis.call('ZRANGEBYSCORE', log, '-inf', expired, 'LIMIT', 0, size)
    local freed = 0
    for _, member in ipairs(page) do
      local permits = permits_of(member)
      if not permits then
        return false
      end
      if permits > 0 then
        budget = budget - 1
      end
      freed = freed + permits
    end
    if #page > 0 then
      redis.call('ZREMRANGEBYRANK', log, 0, #page - 1)
      book.value = book.value + freed
    end
    if #page < size then
      break
    end
  end
  local live = book.value > book.rate and live_permits(log, now, book.interval)
  if live then
    book.value = book.rate - live
  end
  return live ~= nil
end

-- Sets the TTL of the three keys by the limit.
--
-- With a keepAliveTime, the TTL covers at least the life of every entry, and is renewed when less
-- than half of it is left, or when `expire` has set a longer one. The value's TTL is read for all
-- three keys if the log is as `old` as the value and the hash belongs to this value alone. A limit
-- per client shares its hash: another client's `expire` and `clearExpire` change that TTL, but not
-- that of this client's value.
--
-- Without a keepAliveTime, a TTL on the hash was set by `expire`, and the other keys get it too, as
-- in Redisson. But if the limit was `written` just now, all TTLs are removed: those of an earlier
-- limit would let grants expire while they count. Redisson's SET removes the TTL of the value, and
-- its next acquire sets it again.
local function keep_alive(hash, value_key, log, keep_alive_time, interval, written, old)
  if keep_alive_time > 0 then
    local life = interval + ahead_of(interval)
    local enough, ttl = math.max(keep_alive_time / 2, life), math.max(keep_alive_time, life)
    local renewed = false
    for _, key in ipairs(old and { value_key } or { value_key, hash, log }) do
      local left = redis.call('PTTL', key)
      renewed = renewed or left < enough or left > ttl
    end
    if renewed then
      redis.call('PEXPIRE', hash, ttl)
      redis.call('PEXPIRE', value_key, ttl)
      redis.call('PEXPIRE', log, ttl)
    end
  elseif written then
    redis.call('PERSIST', hash)
    redis.call('PERSIST', value_key)
    redis.call('PERSIST', log)
  else
    local ttl = redis.call('PTTL', hash)
    if ttl > 0 then
      redis.call('PEXPIRE', value_key, ttl)
      redis.call('PEXPIRE', log, ttl)
    end
  end
end
