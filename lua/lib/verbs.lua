-- Verbs: all operations on a limiter except taking permits. Joined in front of each verbs.lua,
-- which adds the verbs of its algorithm, and calls the one that ARGV names.
--
-- KEYS  1-5, see lib/state.lua; for rename also 6, that of a ban, and then these six
--       under the new name
-- ARGV  1  the verb, and then its arguments:
--       available       now, id
--       clear_expire    none
--       expire          millis, when
--       release         permits, now, id
--       rename          none
--       repair          now
--       set_rate        rate, interval, rate_type, keep_alive_time, now, keep, existing
--       settle          see each verbs.lua
--       try_set_rate    rate, interval, rate_type, keep_alive_time
--
--       now is ms since the epoch, or empty for the server's clock; id 16 bytes never used before,
--       for entries that a repair adds. when is empty, NX, XX, GT or LT: see `expire`.
--       keep is '1' to keep the permits in use, '0' to make all permits free. existing is '1' to
--       change only a limit that is already set. An algorithm ignores the arguments that it does
--       not need.
-- Reply available       1, permits left, now, rate, interval
--       release         1, permits released: fewer if fewer are in use; permits left
--       repair          1, permits that had been lost, below zero if counted twice; permits left
--       settle          1, permits credited, below zero if charged; 0 if there was nothing to do
--       the others      1 if anything changed, else 0
--       negative: an error, alone in the reply

local unpack = rawget(_G, 'unpack') or table.unpack

local verbs = {}

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

-- RRateLimiter.rename of Redisson 4.7.0 renames only the hash: the new name then has all permits,
-- and the old keys stay behind. Here the permits in use move, too, and a limiter that had the new
-- name is lost. Of a limit per client only this client's part moves, as other clients' ids are
-- unknown.
function verbs.rename()
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
  end
  local count = math.floor(#KEYS / 2)
  for i = 1, count do
    if redis.call('EXISTS', KEYS[i]) == 1 then
      redis.call('RENAME', KEYS[i], KEYS[i + count])
    else
      redis.call('UNLINK', KEYS[i + count])
    end
  end
  return 1
end

-- Each algorithm says what these two do. `in_use` returns the permits left by another limit,
-- whether the state stays if these are nil, and an error, before which nothing is written.
-- `begin_life` sets the TTLs by a limit that was just written; `is_new` if `try_set_rate` wrote it:
-- then a value without a log goes.
local in_use, begin_life

-- RRateLimiter.setRate(args) and updateRate(args) of Redisson 4.7.0. Redisson's forget the permits
-- in use above a lowered rate, so that the new rate never holds under load, and leave an old TTL
-- running if the keepAliveTime is removed.
function verbs.set_rate(rate, interval, rate_type, keep_alive_time, now, keep, existing)
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if existing == '1' and not (limit[1] and limit[2] and limit[3]) then
    return 0
  end
  local value_key, log = keys_of(rate_type, 0)
  local is_same_type, value, kept, wrong = not limit[3] or limit[3] == rate_type, nil, nil, nil
  if keep == '1' and is_same_type then
    value, kept, wrong = in_use(limit, value_key, log, tonumber(rate), interval, now)
  end
  if wrong then
    return wrong
  end
  write_limit(KEYS[1], { rate, interval, rate_type, keep_alive_time })
  if not is_same_type then
    redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  elseif value then
    redis.call('SET', value_key, value, 'KEEPTTL')
  elseif not kept then
    redis.call('UNLINK', value_key, log)
  end
  begin_life(value_key, log, tonumber(keep_alive_time), tonumber(interval))
  return 1
end

-- RRateLimiter.trySetRate of Redisson 4.7.0, which writes the fields that a limit lacks; also
-- keepAliveTime, if the limit was written before 3.38.0.
function verbs.try_set_rate(rate, interval, rate_type, keep_alive_time)
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
  if limit[1] and limit[2] and limit[3] then
    return 0
  end
  redis.call('HSETNX', KEYS[1], 'rate', rate)
  redis.call('HSETNX', KEYS[1], 'interval', interval)
  redis.call('HSETNX', KEYS[1], 'keepAliveTime', keep_alive_time)
  redis.call('HSETNX', KEYS[1], 'type', rate_type)
  local value_key, log = keys_of(limit[3] or rate_type, 0)
  begin_life(value_key, log, tonumber(keep_alive_time), tonumber(interval), true)
  return 1
end
