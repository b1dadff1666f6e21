-- Functions on a limiter's state, joined in front of most scripts: README.md lists what each script
-- consists of.
--
-- KEYS, the five of a limiter. Scripts declare every key that they use, so that Redis Cluster can
-- route them and servers that refuse undeclared keys can run them:
--   1  the limit: hash of rate, interval (ms), type (0 overall, 1 per client) and keepAliveTime
--      (ms, 0 none)
--   2  permits left, decimal string            3  the same for one client (type 1)
--   4  the log: sorted set of grants           5  the same for one client (type 1)

-- Redisson's members end in a 32-bit count of permits, little-endian, behind an id. The size shows
-- the generation: 8 (3.13.3-3.16.3), 20 (3.16.4-3.16.8), 13 (3.17.0-3.20.x) and 21 bytes (since
-- 3.21.0, and here).
local MEMBER_SIZES = { [8] = true, [13] = true, [20] = true, [21] = true }

-- The most entries that are read at a time, if their number is not known.
local PAGE = 100

-- The most members that a repair adds: 4 * 10^11 permits.
local RESTORED = 100

-- The greatest number that a script can count exactly: 2^53 - 1. Java stores greater rates, and
-- loses permits with them.
local MOST = 9007199254740991

-- The first number of a reply: a decision (1 or 0), a refusal that no wait can change, or an error.
local GRANTED, REFUSED, ABOVE_RATE = 1, 0, 2
local UNINITIALIZED, OTHER_TYPE, FOREIGN_MEMBER, UNREADABLE = -1, -2, -3, -4

-- Returns a text as a number; nil for none. In Lua 5.4 a whole number is an integer then, however
-- it is spelled.
local function read_number(text)
  local number = tonumber(text or nil)
  return number and number % 1 == 0 and math.floor(number) or number
end

-- Returns a stored rate or interval as a number; nil if it is none, or too great to count with.
local function number_of(text)
  local number = read_number(text)
  return number and number <= MOST and number >= -MOST and number or nil
end

-- Returns a stored interval, in whole milliseconds; nil if it is none. An interval of 0 is none: it
-- would grant everything.
local function interval_of(text)
  local interval = number_of(text)
  return interval and interval >= 1 and interval % 1 == 0 and interval or nil
end

-- Returns the permits left that a key holds; nil for none. Lua reads "nan" as a number that equals
-- nothing, itself included.
local function value_of(key)
  local value = read_number(redis.call('GET', key))
  return value == value and value or nil
end

-- Returns the permits that one member holds; nil for a member that no Redisson wrote.
local function permits_of(member)
  if not MEMBER_SIZES[#member] then
    return nil
  end
  -- Lua 5.4 makes a float of it, and would print "5.0".
  return math.floor((struct.unpack('<I4', member, #member - 3)))
end

-- Returns the time in ms since the epoch: the caller's, or the server's if the caller gives none.
-- TIME is read once in a call, because before Redis 7.2 it moves on while a script runs. A batch
-- has read it already.
local function clock(given)
  if given ~= '' or ARGV.now then
    return tonumber(ARGV.now or given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the keys of the permits left and of the log for limits of this type.
local function keys_of(rate_type)
  if rate_type == '1' then
    return KEYS[3], KEYS[5]
  end
  return KEYS[2], KEYS[4]
end

local function write_limit(hash, limit)
  redis.call('HSET', hash, 'rate', limit[1], 'interval', limit[2],
    'keepAliveTime', limit[4] or '0', 'type', limit[3])
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

-- Sets back to `latest` the scores that are later, which a wrong clock has written: they were
-- granted no later than now. Returns how many, and the score of the newest entry then. Not only
-- those that this call waits for, as the caller who waits asks no earlier; but the oldest 5,000, as
-- a server answers no other call meanwhile. By the newest one the next call knows that there are
-- more.
local function set_back(log, newest, latest)
  local count, foreign = 0, 0
  while newest and newest > latest and count < 5000 do
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
      newest = latest
    end
  end
  return count, newest
end

-- Adds entries for permits that are in use for an unknown time, as if they were granted now. `id`
-- is 16 bytes of the caller's; its second half makes the members of two callers differ. The number
-- of members is bounded, to bound the work: permits beyond it are free when the whole log has
-- expired.
local function restore(log, now, permits, id)
  local chunk = 0
  while permits > 0 and chunk < RESTORED do
    local part = math.min(permits, 4294967295)
    local marked = 'heal:' .. string.char(
      math.floor(chunk / 65536) % 256, math.floor(chunk / 256) % 256, chunk % 256)
    redis.call('ZADD', log, now, struct.pack('<Bc0I4', 16, marked .. string.sub(id, 9, 16), part))
    permits = permits - part
    chunk = chunk + 1
  end
end

-- Brings value and log into agreement. `value` is what the value key holds, or nil to count it from
-- the log. Returns three things: the value, nil if a member is foreign; the score of the newest
-- entry, nil if the log is empty; and true if the log was created now, and so has no TTL.
local function agree(log, value, rate, interval, now, id)
  local newest = redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
  newest = newest and math.floor(newest)
  if newest and newest + interval <= now then
    -- The whole log has expired. Dropping it takes O(1) here, and repairs any drift.
    redis.call('UNLINK', log)
    return rate, nil
  end
  if newest then
    if not value or value > rate then
      local live = live_permits(log, now, interval)
      return live and rate - live, newest
    end
    return value, newest
  end
  if not value or value > rate then
    return rate, nil
  end
  if value < rate then
    restore(log, now, rate - value, id)
    return value, now, true
  end
  return value, nil
end

-- Credits expired permits to the value, oldest first, until `wanted` are left or `budget` members
-- that hold permits are removed. Returns the value, and false if it met a foreign member; what was
-- credited before that stays.
local function sweep(log, value, rate, interval, now, wanted, budget)
  while value < wanted and budget > 0 do
    local size = math.min(budget, PAGE)
    local page = redis.call('ZRANGEBYSCORE', log, '-inf', now - interval, 'LIMIT', 0, size)
    local freed = 0
    for _, member in ipairs(page) do
      local permits = permits_of(member)
      if not permits then
        return value, false
      end
      if permits > 0 then
        budget = budget - 1
      end
      freed = freed + permits
    end
    if #page > 0 then
      redis.call('ZREMRANGEBYRANK', log, 0, #page - 1)
      value = value + freed
    end
    if #page < size then
      break
    end
  end
  if value > rate then
    local live = live_permits(log, now, interval)
    return live and rate - live or value, live ~= nil
  end
  return value, true
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

-- PEXPIRE with the conditions that Redis itself has since 7.0: NX sets a TTL only if there is none,
-- XX only if there is one, GT only a later one, LT only an earlier one, and an empty text always.
-- A missing TTL counts as later than any. Returns 1 if the TTL was set, else 0.
local function expire(key, millis, when)
  if when ~= '' then
    local left, wanted = redis.call('PTTL', key), tonumber(millis)
    local lasts = left < 0
    if when == 'NX' and not lasts or when == 'XX' and lasts
      or when == 'GT' and (lasts or wanted <= left)
        or when == 'LT' and not lasts and wanted >= left then
      return 0
    end
  end
  return redis.call('PEXPIRE', key, millis)
end

-- Returns the state under an operation's keys if it has a limit that can be counted; otherwise nil
-- and the reply with the error.
local function read_books()
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if not (limit[1] and limit[2] and limit[3]) then
    return nil, { UNINITIALIZED }
  end
  local rate, interval = number_of(limit[1]), interval_of(limit[2])
  if not rate or not interval then
    return nil, { UNREADABLE }
  end
  local value_key, log = keys_of(limit[3])
  return {
    rate = rate, interval = interval, keep_alive_time = tonumber(limit[4]) or 0,
    value_key = value_key, log = log, stored = value_of(value_key),
  }
end
