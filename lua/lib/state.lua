-- Functions on a limiter's state, joined in front of most scripts: README.md lists what each script
-- consists of.
--
-- KEYS, the five of a limiter. Scripts declare every key that they use, so that Redis Cluster can
-- route them and servers that refuse undeclared keys can run them:
--   1  the limit: hash of rate, interval (ms), type (0 overall, 1 per client) and keepAliveTime
--      (ms, 0 none)
--   2  permits left, decimal string            3  the same for one client (type 1)
--   4  the log: sorted set of grants           5  the same for one client (type 1)

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

-- Returns the time in ms since the epoch: the caller's, or the server's if the caller gives none.
-- TIME is read once in a call, because before Redis 7.2 it moves on while a script runs.
-- acquire.lua may have read it already.
local function clock(given)
  if given ~= '' or ARGV.now then
    return tonumber(ARGV.now or given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the keys of the permits left and of the log for limits of this type; `behind` is how many
-- keys of other limiters come before them.
local function keys_of(rate_type, behind)
  if rate_type == '1' then
    return KEYS[behind + 3], KEYS[behind + 5]
  end
  return KEYS[behind + 2], KEYS[behind + 4]
end

local function write_limit(hash, limit)
  redis.call('HSET', hash, 'rate', limit[1], 'interval', limit[2],
    'keepAliveTime', limit[4] or '0', 'type', limit[3])
end

-- Writes the permits left that a key holds, unless it holds them already.
local function write_value(key, stored, value)
  if value ~= stored then
    redis.call('SET', key, value, 'KEEPTTL')
  end
end

-- Returns the book of a limiter, which is what an operation knows about it; or nil and the reply
-- with the error, if it has no limit that can be counted. `behind` is how many keys of others come
-- before its own, and `source` whose limit counts: see acquire_list.lua. Other limits than the
-- stored one are in ARGV behind the place `at`. Nothing is written yet: `limit` is what to write,
-- `changed` 1 if that creates the limit, 2 if it rewrites it, by other numbers than `old_rate` and
-- maybe the `same_interval`.
local function read_book(behind, source, at)
  local hash = KEYS[behind + 1]
  local limit = redis.call('HMGET', hash, 'rate', 'interval', 'type', 'keepAliveTime')
  local changed = 0
  if (source == 'code' or source == 'keep') and limit[3] and limit[3] ~= ARGV[at + 3] then
    return nil, { OTHER_TYPE }
  end
  if not (limit[1] and limit[2] and limit[3]) then
    if source == 'redis' then
      return nil, { UNINITIALIZED }
    end
    for field = 1, 4 do
      limit[field] = limit[field] or ARGV[at + field]
    end
    changed = 1
  end
  local rate, interval = number_of(limit[1]), interval_of(limit[2])
  if not rate or not interval then
    return nil, { UNREADABLE }
  end
  local old_rate, same_interval = rate, true
  if source == 'code' and (limit[1] ~= ARGV[at + 1] or limit[2] ~= ARGV[at + 2]) then
    same_interval = limit[2] == ARGV[at + 2]
    limit[1], limit[2] = ARGV[at + 1], ARGV[at + 2]
    rate, interval = tonumber(limit[1]), tonumber(limit[2])
    changed = 2
  end
  local value_key, log = keys_of(limit[3], behind)
  return {
    hash = hash, value_key = value_key, log = log, rate = rate, interval = interval,
    keep_alive_time = tonumber(limit[4]) or 0, limit = limit, changed = changed,
    old_rate = old_rate, same_interval = same_interval,
  }
end
