-- Functions on the state of a GCRA limiter. Joined behind lib/state.lua.
--
-- KEYS are those of lib/state.lua; there is no log. The value is five doubles, little-endian, 40
-- bytes:
--   interval (ms) and rate   by which tat is counted; only a limiter set by verbs also has a hash
--   tat       when all permits are free, us since the epoch: the theoretical arrival time
--   ends      when the key expires, us since the epoch: never before any tat that it held
--   given     us by which tat was moved back, in total: from it, a receipt knows how much was given
--             back since its grant
-- The first byte is always zero, so that no program reads the value as a number of permits. A value
-- of another form belongs to another algorithm, or to none, and counts as none.

-- Greatest interval, us: two of them and a time of today can be added exactly.
local LONGEST = 3200000000000000

-- The total of what was given back wraps around here.
local WRAP = 4503599627370496

-- The additional life of a key with a caller's clock, ms: that clock may be slower than the
-- server's.
local SLOWER = 60000

-- Returns microseconds since the epoch: by the caller's clock, which has whole ms, or the server's.
local function micros(given)
  if given ~= '' then
    return given * 1000
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Returns a limit in the units of the algorithm: `emission`, microseconds from permit to permit,
-- rounded up, and `whole`, those of all permits; nil for a limit that cannot be counted: more than
-- one permit in a microsecond.
local function pace_of(rate, interval)
  local micros = interval and interval * 1000
  if not rate or not interval or rate % 1 ~= 0 or interval % 1 ~= 0
    or rate < 1 or micros > LONGEST or rate > micros then
    return nil
  end
  local emission = math.floor(micros / rate)
  if emission * rate < micros then
    emission = emission + 1
  end
  return { rate = rate, interval = interval, emission = emission, whole = emission * rate }
end

-- Returns the number of whole multiples of `unit` that cover `amount`.
local function rounded_up(amount, unit)
  local times = math.floor(amount / unit)
  if times * unit < amount then
    times = times + 1
  end
  return times
end

-- Returns the stored state; nil if there is none, or another algorithm's.
local function read_state(value_key)
  local stored = redis.call('GET', value_key)
  if not stored or #stored ~= 40 then
    return nil
  end
  local numbers = { struct.unpack('<ddddd', stored) }
  for place, number in ipairs(numbers) do
    -- A float in Lua 5.4, which a reply must not have.
    numbers[place] = math.floor(number)
  end
  local pace = pace_of(numbers[2], numbers[1])
  return pace and { tat = numbers[3], ends = numbers[4], given = numbers[5], pace = pace }
end

local function differ(state, pace)
  return state ~= nil and (state.pace.rate ~= pace.rate or state.pace.interval ~= pace.interval)
end

-- Returns how far tat lies ahead of now by this limit. If tat was counted by another limit, the
-- whole permits in use are converted to this one. By the server's clock the result is at most what
-- all permits take, as more was never in use; a caller's clock may be slow, so its result is not
-- cut.
local function backlog_of(state, pace, now, given_clock)
  if not state or state.tat <= now then
    return 0
  end
  local backlog = state.tat - now
  if not given_clock then
    backlog = math.min(backlog, state.pace.whole)
  end
  if differ(state, pace) then
    backlog = rounded_up(backlog, state.pace.emission) * pace.emission
    backlog = math.min(backlog, pace.whole)
  end
  return backlog
end

-- Stores how far tat lies ahead of now: the `kept` part of the stored distance, plus `added`, up to
-- what all permits take, which bounds a debt. What is not kept counts as given back. Returns tat,
-- and the total that was given back. The key's expiry is extended by as much as all permits take,
-- so that most calls need not extend it.
local function write_state(value_key, state, kept, added, pace, now, given_clock)
  local tat = math.min(now + math.min(kept + added, math.max(pace.whole, kept)), MOST)
  local ends, given = 0, 0
  if state then
    ends, given = state.ends, (state.given + math.max(state.tat - now - kept, 0)) % WRAP
  end
  if tat <= ends then
    local packed = struct.pack('<ddddd', pace.interval, pace.rate, tat, ends, given)
    redis.call('SET', value_key, packed, 'KEEPTTL')
  else
    ends = math.min(tat + pace.whole, MOST)
    local life = math.floor((ends - now) / 1000) + 1 + (given_clock and SLOWER or 0)
    local value = struct.pack('<ddddd', pace.interval, pace.rate, tat, ends, given)
    redis.call('SET', value_key, value, 'PX', string.format('%d', life))
  end
  return tat, given
end

-- Returns whether tat lies further ahead than the `backlog` that counts, which only a wrong clock
-- can cause.
local function is_beyond(state, backlog, now)
  return state ~= nil and state.tat > now + backlog
end

-- Sets the TTL of the hash by the limit's keepAliveTime, and at least to the time for which permits
-- are in use. Without a keepAliveTime, a TTL on the hash was set by `expire`, and stays unless the
-- limit was `written` just now.
local function keep_limit(keep_alive_time, backlog, written)
  if keep_alive_time > 0 then
    local in_use = math.floor(backlog / 1000) + 1
    local left = redis.call('PTTL', KEYS[1])
    if left < math.max(keep_alive_time / 2, in_use) or left > math.max(keep_alive_time, in_use) then
      redis.call('PEXPIRE', KEYS[1], string.format('%d', math.max(keep_alive_time, in_use)))
    end
  elseif written then
    redis.call('PERSIST', KEYS[1])
  end
end

-- Returns the limit under an operation's keys: that of the hash, otherwise that of the value; or
-- nil and the reply with the error, if there is none that can be counted.
local function read_limit()
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  local value_key = keys_of(limit[3])
  local state = read_state(value_key)
  local rate, interval = number_of(limit[1]), number_of(limit[2])
  local stored = limit[1] and limit[2] and limit[3]
  if not stored then
    if not state and redis.call('EXISTS', KEYS[3]) == 1 then
      value_key = KEYS[3]
      state = read_state(value_key)
    end
    if not state then
      return nil, { UNINITIALIZED }
    end
    rate, interval = state.pace.rate, state.pace.interval
  end
  local pace = pace_of(rate, interval)
  if not pace then
    return nil, { UNREADABLE }
  end
  return { pace = pace, value_key = value_key, state = state,
    keep_alive_time = stored and tonumber(limit[4]) or 0 }
end
