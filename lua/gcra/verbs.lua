-- The verbs of a GCRA limiter.
--
-- KEYS, ARGV and Reply: see lib/verbs.lua, and settle
-- RRateLimiter of Redisson 4.7.0, adapted: Redisson has no such limiter
--
--- @include lib/state.lua
--- @include gcra/state.lua
--- @include lib/verbs.lua

-- Returns the limit under the keys, and how far its tat lies ahead of now; or nil and the reply
-- with the error. `proves_nothing` is true for a caller's clock.
local function read_backlog(now, proves_nothing)
  local limit, unreadable = read_limit()
  if limit then
    limit.now = micros(now)
    limit.backlog = backlog_of(limit.state, limit.pace, limit.now, proves_nothing)
    limit.used = rounded_up(limit.backlog, limit.pace.emission)
  end
  return limit, unreadable
end

-- RRateLimiter.availablePermits. Changes only the TTL of the hash, and resets a tat that a wrong
-- clock wrote. The result can be below zero by a caller's clock, if another caller's clock is
-- ahead.
function verbs.available(given)
  local limit, unreadable = read_backlog(given, given ~= '')
  if not limit then
    return unreadable
  end
  local pace, state, now, backlog = limit.pace, limit.state, limit.now, limit.backlog
  if is_beyond(state, backlog, now) and not differ(state, pace) then
    write_state(limit.value_key, state, backlog, 0, pace, now, given ~= '')
  end
  keep_limit(limit.keep_alive_time, backlog)
  return { 1, pace.rate - limit.used, math.floor(now / 1000), pace.rate, pace.interval }
end

-- RRateLimiter.clearExpire. The permits in use still become free at their time. The keepAliveTime
-- stays, so the next acquire sets a TTL again.
function verbs.clear_expire()
  return redis.call('PERSIST', KEYS[1])
end

-- RRateLimiter.expire, for the hash. The value keeps its own expiry, at most an interval later. A
-- rule's limiter has no hash, only the value. With a keepAliveTime, the next acquire sets the TTL
-- again.
function verbs.expire(millis, when)
  return expire(KEYS[1], millis, when)
end

-- RRateLimiter.release. Not safe to send twice; with a receipt, use settle.
function verbs.release(permits, given)
  local limit, unreadable = read_backlog(given, given ~= '')
  if not limit then
    return unreadable
  end
  local pace, backlog = limit.pace, limit.backlog
  local released = math.min(tonumber(permits), limit.used)
  if released > 0 then
    backlog = math.max(backlog - released * pace.emission, 0)
    write_state(limit.value_key, limit.state, backlog, 0, pace, limit.now, given ~= '')
  end
  keep_limit(limit.keep_alive_time, backlog)
  return { 1, released, pace.rate - limit.used + released }
end

-- Forgets permits in use beyond the whole limit, which only a wrong clock can have written.
-- Redisson has no such operation.
function verbs.repair(given)
  -- As by a caller's clock, so that the distance is not cut before it is compared.
  local limit, unreadable = read_backlog(given, true)
  if not limit then
    return unreadable
  end
  local pace, state, backlog = limit.pace, limit.state, limit.backlog
  local lost = math.max(limit.used - pace.rate, 0)
  if state and state.tat > limit.now then
    -- So that the key's expiry is set again, even if it was changed by hand.
    state.ends = 0
    backlog = math.min(backlog, pace.whole)
    write_state(limit.value_key, state, backlog, 0, pace, limit.now, given ~= '')
  end
  keep_limit(limit.keep_alive_time, backlog)
  return { 1, lost, pace.rate - limit.used + lost }
end

-- RRateLimiter.setRate(args) and updateRate(args). The permits in use count by the new limit from
-- now on.
function verbs.set_rate(rate, interval, rate_type, keep_alive_time, given, keep, existing)
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
  if existing == '1' and not (limit[1] and limit[2] and limit[3]) then
    return 0
  end
  -- Before the first write: a key of another type under the value's name is an error.
  local value_key = keys_of(rate_type)
  local state = read_state(value_key)
  write_limit(KEYS[1], { rate, interval, rate_type, keep_alive_time })
  if limit[3] and limit[3] ~= rate_type then
    redis.call('UNLINK', KEYS[2], KEYS[3])
    state = nil
  elseif keep ~= '1' then
    redis.call('UNLINK', value_key)
    state = nil
  end
  local now, pace = micros(given), pace_of(number_of(rate), number_of(interval))
  local backlog = 0
  if state and pace then
    backlog = backlog_of(state, pace, now, given ~= '')
    if differ(state, pace) or is_beyond(state, backlog, now) then
      write_state(value_key, state, backlog, 0, pace, now, given ~= '')
    end
  end
  keep_limit(tonumber(keep_alive_time), backlog, true)
  return 1
end

-- RRateLimiter.trySetRate.
function verbs.try_set_rate(rate, interval, rate_type, keep_alive_time)
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
  if limit[1] and limit[2] and limit[3] then
    return 0
  end
  write_limit(KEYS[1], { rate, interval, rate_type, keep_alive_time })
  keep_limit(tonumber(keep_alive_time), 0, true)
  return 1
end

-- Settles what one acquire took: releases the part of it that still lies ahead, or charges more.
-- Not safe to send twice: whether it was settled before is not stored.
--
-- ARGV  credited       permits to release; below zero: to charge, from now on
--       given          now, ms; empty for the server's clock
--       tat, given_back   us, as the acquire left them
--       source         whose limit counts: 'redis', 'init' or 'code'
--       rate, interval, rate_type, keep_alive_time   all empty with 'redis'. 'init' writes them if
--                      there is no limit and more is charged
--
-- Redisson has no such operation.
function verbs.settle(credited, given, tat, given_back, source, ...)
  credited = tonumber(credited)
  local of_code, limit, created = source == 'code', { ... }, false
  if not of_code then
    local stored = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
    if stored[1] and stored[2] and stored[3] then
      limit = stored
    elseif credited < 0 and source == 'init' then
      -- A response can outlast its idle limiter, which expires. Then the limit is written again, so
      -- that the debt counts.
      created = true
    else
      return { UNINITIALIZED }
    end
  end
  local pace = pace_of(number_of(limit[1]), number_of(limit[2]))
  if not pace then
    return { UNREADABLE }
  end
  local value_key = keys_of(limit[3])
  local state = read_state(value_key)
  if state and of_code then
    -- Another process may count by another limit. Only acquire changes which one counts.
    pace = state.pace
  end
  local now = micros(given)
  local backlog = backlog_of(state, pace, now, given ~= '')

  if credited < 0 then
    -- The permits were used, so they count at once, until all permits are in use.
    -- More than all are no more, and could be too much to multiply.
    local owed = math.min(-credited, pace.rate) * pace.emission
    local free = write_state(value_key, state, backlog, owed, pace, now, given ~= '')
    if created then
      write_limit(KEYS[1], limit)
    end
    if not of_code then
      keep_limit(tonumber(limit[4]) or 0, free - now, created)
    end
    return { 1, credited }
  end

  if not state then
    return { 1, 0 }
  end
  -- Permits released since may have been before it, and moved it forward by as much; so may a
  -- greater limit.
  local since = (state.given - tonumber(given_back)) % WRAP
    + math.max(state.tat - now - backlog, 0)
  local ahead = math.min(tonumber(tat) - since - now, backlog)
  local moved = math.min(credited * pace.emission, ahead)
  if moved <= 0 then
    return { 1, 0 }
  end
  write_state(value_key, state, backlog - moved, 0, pace, now, given ~= '')
  return { 1, rounded_up(moved, pace.emission) }
end

return verbs[ARGV[1]](unpack(ARGV, 2))
