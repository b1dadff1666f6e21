-- What the scripts of a GCRA limiter share. Joined between state.lua and each of them at compile time.
--
-- KEYS are those of state.lua; there is no log. The value is five doubles, little-endian, 40 bytes:
--   interval (ms) and rate   by which tat is counted; only a limiter that verbs have set has a hash, too
--   tat       when all permits are free, us since the epoch: the theoretical arrival time
--   ends      when the key vanishes, us since the epoch: never before any tat that it held
--   given     us by which tat was moved back, in all, so that a receipt knows how much of it was before its own
-- The first byte is always zero: nobody who looks for a number of permits takes it for one.
-- Any other value is another algorithm's, or nobody's, and counts as none.

-- Greatest interval, us: two of them and a time of today can be added exactly.
local LONGEST = 3200000000000000

-- Where the sum of what was given back begins anew.
local WRAP = 4503599627370496

-- What a key lives longer where a caller's clock counts, ms: that may go slower than the server's.
local SLOWER = 60000

-- Microseconds since the epoch: the caller's clock, which tells whole ms, or the server's.
local function micros(given)
  if given ~= '' then
    return given * 1000
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A limit as it is counted by: `emission`, microseconds from permit to permit, rounded up, and `whole`, those of all of them;
-- nil for what cannot be counted by: more than a permit in one microsecond.
local function pace_of(rate, interval)
  local micros = interval and interval * 1000
  if not rate or not interval or rate % 1 ~= 0 or interval % 1 ~= 0 or rate < 1 or micros > LONGEST or rate > micros then
    return nil
  end
  local emission = math.floor(micros / rate)
  if emission * rate < micros then
    emission = emission + 1
  end
  return { rate = rate, interval = interval, emission = emission, whole = emission * rate }
end

-- The whole multiples of `unit` that `amount` takes.
local function rounded_up(amount, unit)
  local times = math.floor(amount / unit)
  if times * unit < amount then
    times = times + 1
  end
  return times
end

-- What is stored; nil where there is nothing, or another algorithm's.
local function read_state(value_key)
  local stored = redis.call('GET', value_key)
  if not stored or #stored ~= 40 then
    return nil
  end
  local interval, rate, tat, ends, given = struct.unpack('<ddddd', stored)
  local pace = pace_of(rate, interval)
  return pace and { tat = tat, ends = ends, given = given, pace = pace }
end

local function differ(state, pace)
  return state ~= nil and (state.pace.rate ~= pace.rate or state.pace.interval ~= pace.interval)
end

-- How far tat lies ahead by this limit; where it was counted by another one, the same permits by
-- this one's pace, whole ones, as far as the limit goes. By the server's clock no further than all
-- permits take: more than those was never in use. A caller's clock may be slow, and proves nothing.
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

-- Stores how much lies ahead of now: what is `kept` of what did, and what is `added`, as far as the
-- whole limit goes: a debt lasts no longer. What is not kept was given back, as far as receipts are
-- concerned. Returns tat, and all that was given back. The key's end is put off by as much as all
-- permits take, so that most calls leave it alone.
local function write_state(value_key, state, kept, added, pace, now, given_clock)
  local tat = math.min(now + math.min(kept + added, math.max(pace.whole, kept)), MOST)
  local ends, given = 0, 0
  if state then
    ends, given = state.ends, (state.given + math.max(state.tat - now - kept, 0)) % WRAP
  end
  if tat <= ends then
    redis.call('SET', value_key, struct.pack('<ddddd', pace.interval, pace.rate, tat, ends, given), 'KEEPTTL')
  else
    ends = math.min(tat + pace.whole, MOST)
    local life = math.floor((ends - now) / 1000) + 1 + (given_clock and SLOWER or 0)
    local value = struct.pack('<ddddd', pace.interval, pace.rate, tat, ends, given)
    redis.call('SET', value_key, value, 'PX', string.format('%d', life))
  end
  return tat, given
end

-- Whether tat lies further ahead than `backlog` of it counts: a wrong clock was at work.
local function is_beyond(state, backlog, now)
  return state ~= nil and state.tat > now + backlog
end

-- Keeps the hash alive as the limit says, and at least while something is in use.
-- Without a keepAliveTime a TTL on the hash was set by `expire`; but a limit `written` just now has none.
local function keep_limit(keep_alive_time, backlog, written)
  if keep_alive_time > 0 then
    local in_use = math.floor(backlog / 1000) + 1
    if redis.call('PTTL', KEYS[1]) < math.max(keep_alive_time / 2, in_use) then
      redis.call('PEXPIRE', KEYS[1], string.format('%d', math.max(keep_alive_time, in_use)))
    end
  elseif written then
    redis.call('PERSIST', KEYS[1])
  end
end

-- The limit under an operation's keys: the hash, else the one by which a rule counts. nil and the reply that says why if
-- there is none, or none that can be counted by.
local function read_limit()
  local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  local value_key = limit[3] == '1' and KEYS[3] or KEYS[2]
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
  return { pace = pace, value_key = value_key, state = state, keep_alive_time = stored and tonumber(limit[4]) or 0 }
end
