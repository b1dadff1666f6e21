-- The verbs of a fixed window.
--
-- KEYS, ARGV and Reply: see lib/verbs.lua, and settle. Windows end by the server's clock: `now` is
-- ignored
-- RRateLimiter of Redisson 3.7.1 to 3.13.2 on the same state, for the verbs that it had
--
--- @include lib/state.lua
--- @include fixed_window/state.lua
--- @include lib/verbs.lua

-- The most by which the end of one window may seem to differ between two calls, ms: TIME and PTTL
-- are read one after the other, and before Redis 7.2 time moves on between them.
local SLACK = 10

-- Returns the limit by whole numbers, which SET and PEXPIRE need; or nil and the reply with the
-- error. See read_book in lib/state.lua.
local function read_limit(source, at)
  local limit, unreadable = read_book(0, source, at)
  if limit and limit.rate % 1 ~= 0 then
    return nil, { UNREADABLE }
  end
  return limit, unreadable
end

-- Returns the limit with the open window (the permits `stored`, nil if none is open, and how many
-- of them the limit allows); or nil and the reply with the error.
local function read_window()
  local limit, unreadable = read_limit('redis')
  if not limit then
    return nil, unreadable
  end
  local left
  limit.stored, left = open_window(limit.value_key, limit.log, limit.interval)
  limit.value = math.min(limit.stored or limit.rate, limit.rate)
  keep_limit(limit.value_key, left, limit.keep_alive_time, limit.interval)
  return limit
end

-- Changes the permits left in the open window. Returns the reply: how many more they are than
-- before, and the permits left.
local function correct(limit, before, value)
  if limit.stored then
    write_value(limit.value_key, limit.stored, value)
  end
  return { 1, value - before, value }
end

-- Opens no window, unlike RRateLimiter.availablePermits of Redisson 3.12.1 to 3.13.2. The result
-- can be below zero after a lowered rate.
function verbs.available()
  local limit, unreadable = read_window()
  return limit and { 1, limit.value, clock(''), limit.rate, limit.interval } or unreadable
end

-- RRateLimiter.clearExpire of Redisson 3.13.1 and 3.13.2. The window still ends. The keepAliveTime
-- stays, so the next acquire sets a TTL again.
function verbs.clear_expire()
  return redis.call('PERSIST', KEYS[1])
end

-- RRateLimiter.expire of Redisson 3.13.1 and 3.13.2, except that it never extends the window. With
-- a keepAliveTime, the next acquire sets the TTL again.
function verbs.expire(millis, when)
  local taken = expire(KEYS[1], millis, when)
  if taken == 1 then
    for _, value_key in ipairs({ KEYS[2], KEYS[3] }) do
      local left = redis.call('PTTL', value_key)
      if left == -1 or left > tonumber(millis) then
        redis.call('PEXPIRE', value_key, millis)
      end
    end
  end
  return taken
end

-- RRateLimiter.release of Redisson 4.7.0, adapted: releases of Redisson that counted by windows had
-- none. Releases permits of the open window. Not safe to send twice.
function verbs.release(permits)
  local limit, unreadable = read_window()
  return limit
    and correct(limit, limit.value, math.min(limit.value + tonumber(permits), limit.rate))
    or unreadable
end

-- Repairs a window that has no end or has more permits left than the rate. Redisson has no such
-- operation.
function verbs.repair()
  local limit, unreadable = read_window()
  return limit and correct(limit, limit.stored or limit.value, limit.value) or unreadable
end

-- A key of another type under the value's name is an error. Without an open window all are free.
function in_use(limit, value_key, log, rate, interval)
  local before = number_of(limit[1])
  if not (before and before % 1 == 0 and interval_of(limit[2]) and limit[3]) then
    return nil
  end
  local stored = open_window(value_key, log, tonumber(interval))
  -- Below zero if more is in use than the new rate allows, so the new rate holds at once.
  return stored and math.min(stored + rate - before, rate), true
end

-- The open window ends all the same, also if the limit was lost.
function begin_life(_, _, keep_alive_time, interval)
  keep_limit(nil, nil, keep_alive_time, interval, true)
end

-- Settles what one acquire took: releases permits if the window they were taken from is still open,
-- or charges more. Not safe to send twice: whether it was settled before is not stored.
--
-- ARGV  credited   permits to release; below zero: to charge
--       ends       the end of the window they were taken from, ms since the epoch by the server's
--                  clock
--       rate, interval, rate_type, keep_alive_time   the limit that is written if there is none and
--                  more is charged; all empty to write none
--
-- Redisson has no such operation.
function verbs.settle(credited, ends, rate)
  credited = tonumber(credited)
  -- A response can outlast its idle limiter, which expires. Then the limit is written again, so
  -- that the debt counts.
  local limit, unreadable = read_limit(credited < 0 and rate ~= '' and 'init' or 'redis', 3)
  if not limit then
    return unreadable
  end
  local value_key, log, interval, is_new =
    limit.value_key, limit.log, limit.interval, limit.changed == 1
  if is_new then
    write_limit(KEYS[1], limit.limit)
  end
  if credited < 0 then
    -- In the open window or in a new one. The permits were used, so they count even if the value
    -- falls below zero: a debt.
    local value = open_window(value_key, log, interval)
    if value then
      redis.call('SET', value_key, math.min(value, limit.rate) + credited, 'KEEPTTL')
    else
      redis.call('SET', value_key, limit.rate + credited, 'PX', interval)
      redis.call('UNLINK', log)
    end
    keep_limit(value_key, redis.call('PTTL', value_key), limit.keep_alive_time, interval, is_new)
    return { 1, credited }
  end

  local stored = value_of(value_key)
  local left = stored and redis.call('PTTL', value_key)
  if not stored or left < 0 then
    return { 1, 0 }
  end
  -- Windows are at least an interval apart; after one that was ended by hand, the next may begin
  -- sooner.
  local apart = math.abs(clock('') + left - tonumber(ends))
  if apart > SLACK or 2 * apart >= interval then
    return { 1, 0 }
  end
  local value = math.min(stored + credited, limit.rate)
  write_value(value_key, stored, value)
  return { 1, value - stored }
end

return verbs[ARGV[1]](unpack(ARGV, 2))
