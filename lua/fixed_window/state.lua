-- Functions on the state of a fixed window. Joined behind lib/state.lua.
--
-- KEYS are those of lib/state.lua; a fixed window has no log. The value's own TTL is the window:
-- the first acquire of a window sets it, and it is never extended; without the key all permits are
-- free. Redis keeps a key through the millisecond of its TTL, so the next window can begin one
-- millisecond later.

-- Returns the permits left in the open window, as stored, and the ms until its end; nil if none is
-- open. A value without an end, or with an end that no window of this interval has, was left by a
-- sliding log, or was written by hand or by another script. It ends one interval from now, because
-- the time of its grants is unknown. So does the log.
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

-- Sets the TTL of the hash by the limit's keepAliveTime, and at least to the end of the open
-- window; the value has its own TTL. Without a keepAliveTime, a TTL on the hash was set by
-- `expire`, and the window ends with it at the latest; a limit `written` just now gets none.
-- Returns the ms until the end of the window.
local function keep_limit(value_key, left, keep_alive_time, interval, written)
  if keep_alive_time > 0 then
    local lives, ttl = redis.call('PTTL', KEYS[1]), math.max(keep_alive_time, interval)
    if lives < math.max(keep_alive_time / 2, interval) or lives > ttl then
      redis.call('PEXPIRE', KEYS[1], ttl)
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
