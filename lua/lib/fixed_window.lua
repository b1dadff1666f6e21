-- What the scripts of a fixed window share. Joined between state.lua and each of them at compile time.
--
-- KEYS are those of state.lua; of a fixed window there is no log. The value's own TTL is the window: it is set by the
-- first acquire of a window and never put off, and without the key all permits are free. Redis keeps a key through the
-- millisecond of its TTL, so the next window can begin one millisecond after that.

-- By how much the end of one window may seem to differ between two calls, ms: TIME and PTTL are read one after the other,
-- and before Redis 7.2 time moves on between them.
local SLACK = 10

-- The rate and interval as whole numbers, which SET and PEXPIRE want; nil if one is not.
local function rate_and_interval(limit)
  local rate, interval = number_of(limit[1]), interval_of(limit[2])
  if rate and interval and rate % 1 == 0 then
    return rate, interval
  end
end

-- The permits left in the open window, as stored, and the ms that it has left; nil if none is open.
-- A value without an end, or with one that no window of this interval has, is what a sliding log left, or was mended by
-- hand or by another script. It ends one interval from now: nobody knows when its permits were taken. So does the log.
local function open_window(value_key, log, interval)
  local value = value_of(value_key)
  local left = value and redis.call('PTTL', value_key)
  if not value or left == -2 then
    return nil
  end
  if left < 0 or left > interval then
    redis.call('PEXPIRE', value_key, interval)
    redis.call('UNLINK', log)
    left = interval
  end
  return value, left
end

-- Keeps the hash alive as the limit says, and at least for the present window; the value has its own end.
-- Without a keepAliveTime a TTL on the hash was set by `expire`, and a window does not outlive it. A limit `written` just
-- now has none.
-- Returns the ms that the window has left.
local function keep_limit(value_key, left, keep_alive_time, interval, written)
  if keep_alive_time > 0 then
    if redis.call('PTTL', KEYS[1]) < math.max(keep_alive_time / 2, interval) then
      redis.call('PEXPIRE', KEYS[1], math.max(keep_alive_time, interval))
    end
  elseif written then
    redis.call('PERSIST', KEYS[1])
  else
    local ttl = redis.call('PTTL', KEYS[1])
    if ttl > 0 and left and ttl < left then
      redis.call('PEXPIRE', value_key, ttl)
      return ttl
    end
  end
  return left
end

-- The limit under an operation's keys, where one must be set. nil and the reply that says why if it cannot be counted with.
local function read_limit()
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if not (limit[1] and limit[2] and limit[3]) then
    return nil, { UNINITIALIZED }
  end
  local rate, interval = rate_and_interval(limit)
  if not rate then
    return nil, { UNREADABLE }
  end
  local value_key, log = KEYS[2], KEYS[4]
  if limit[3] == '1' then
    value_key, log = KEYS[3], KEYS[5]
  end
  return {
    rate = rate, interval = interval, keep_alive_time = tonumber(limit[4]) or 0, value_key = value_key, log = log,
  }
end
