-- Takes permits of one limiter for one caller, or tells when they will be free. The hot path.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  those of acquire_list.lua for one limiter and one caller that does not wait and is not only tried out:
--       1  now   2  '1' if exact   3  whose limit counts   4  rate   5  interval   6  type   7  keepAliveTime
--       8  '0'   9  permits   10  member   11  '0'
-- Reply as of acquire_list.lua; where all is usual, as one text with spaces between
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0. What is usual is decided here, with few commands; all else is left to
-- acquire_list.lua, which follows: a limit to write, a lost key, drift, a wrong clock, a member that no Redisson wrote.
-- Nothing is written before that is known, or value and log agree again. What acquire_list.lua defines is made only there.
--
-- Numbers cost more than their commands: each that goes to Redis or comes as a score is printed and read again. So
-- constants are text, and what came as text is handed on.

local call = redis.call
local ARGV = ARGV
local source = ARGV[3]
local limit = call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval = tonumber(limit[1]), tonumber(limit[2])
local usual = rate and interval and limit[3] and rate <= 9007199254740991 and interval <= 9007199254740991
if source == 'code' then
  usual = usual and limit[1] == ARGV[4] and limit[2] == ARGV[5] and limit[3] == ARGV[6]
elseif source == 'keep' then
  usual = usual and limit[3] == ARGV[6]
end

if usual then
  local value_key, log = KEYS[2], KEYS[4]
  if limit[3] == '1' then
    value_key, log = KEYS[3], KEYS[5]
  end
  local permits, member, exact = tonumber(ARGV[9]), ARGV[10], ARGV[2] == '1'
  local value = tonumber(call('GET', value_key))
  local missing = value and permits - value
  if value and value <= rate and permits <= rate and missing <= 100 then
    local now = tonumber(ARGV[1])
    local latest
    if not now then
      local time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
      latest = now + math.floor(interval / 10)
    end
    local expired = now - interval

    -- What is left of it. A credit that falls short is written at once, whatever becomes of the call.

    local stored, known, first = value, true, 1
    local page
    if exact or missing > 0 then
      -- The oldest entries: as many as may be needed to tell how long to wait.
      page = call('ZRANGE', log, '0', missing > 1 and missing - 1 or '0', 'WITHSCORES')
    else
      page = call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
    end
    local score = tonumber(page[2])
    if not score then
      known = false
    elseif score <= expired then
      local newest, freed, foreign = score, 0, false
      if exact or missing > 0 then
        -- As many as may go, or in the exact case one more than are needed: it is mostly alive.
        local most = exact and math.max(missing, 1) or math.min(math.max(permits, missing), 100)
        page = call('ZRANGE', log, '0', most, 'WITHSCORES')
        repeat
          local bytes = #page[first]
          if bytes ~= 21 and bytes ~= 13 and bytes ~= 20 and bytes ~= 8 then
            foreign = true
            break
          end
          freed = freed + struct.unpack('<I4', page[first], bytes - 3)
          first = first + 2
          newest = tonumber(page[first + 1])
        until not newest or newest > expired
        if not newest then
          newest = tonumber(call('ZRANGE', log, '-1', '-1', 'WITHSCORES')[2])
          known = not exact and freed >= missing
        end
      end
      if foreign then
        known = false
      elseif newest <= expired then
        -- The whole log has expired: dropping it costs O(1) here, whatever its size, and heals any drift.
        call('UNLINK', log)
        value, missing, known = rate, 0, true
      elseif known and value + freed <= rate then
        call('ZREMRANGEBYRANK', log, '0', first == 3 and '0' or (first - 3) / 2)
        value, missing = value + freed, missing - freed
        if missing > 0 and freed > 0 then
          call('SET', value_key, value, 'KEEPTTL')
        end
      else
        known = false
      end
    end

    -- The decision.

    local status, wait, wrote, added = nil, 0, true, false
    if not known then
      status = nil
    elseif value >= permits then
      status = 1
      -- NX: a call that was sent twice finds its member and takes nothing more.
      added = call('ZADD', log, 'NX', latest and now or ARGV[1], member) == 1
      if added then
        value = value - permits
      end
      if value ~= stored then
        -- What is no whole number is written as one that is counted with.
        if stored - value ~= permits or type(redis.pcall('INCRBY', value_key, '-' .. ARGV[9])) ~= 'number' then
          call('SET', value_key, value, 'KEEPTTL')
        end
      end
    elseif call('ZSCORE', log, member) then
      -- So does one whose own permits were the last.
      status = 1
    else
      -- Walk from the oldest entry to the one whose expiry makes enough room.
      -- A refusal that wrote nothing leaves the lives alone: what it met, they outlast. But where nobody can write the
      -- limit again, one that is asked must not vanish.
      wrote = value ~= stored or source == 'redis'
      local freed, at = 0, first
      while freed < missing do
        local held = page[at]
        local bytes = held and #held
        if bytes ~= 21 and bytes ~= 13 and bytes ~= 20 and bytes ~= 8 then
          break
        end
        freed = freed + struct.unpack('<I4', held, bytes - 3)
        at = at + 2
      end
      if freed >= missing then
        local due = tonumber(page[at - 1])
        if not latest or due <= latest then
          status, wait = 0, due - expired
        end
      end
    end

    if status then
      if wrote then
        local keep = tonumber(limit[4]) or 0
        if keep > 0 then
          -- See keep_alive in lib/state.lua: none of the keys is new, or the log's life is none.
          local life = interval + math.floor(interval / 10)
          if call('PTTL', log) < math.max(keep / 2, life) then
            local ttl = math.max(keep, life)
            call('PEXPIRE', KEYS[1], ttl)
            call('PEXPIRE', value_key, ttl)
            call('PEXPIRE', log, ttl)
          end
        else
          local ttl = call('PTTL', KEYS[1])
          if ttl > 0 then
            call('PEXPIRE', value_key, ttl)
            call('PEXPIRE', log, ttl)
          end
        end
      end
      local reset = interval
      -- Mostly what was just added is the newest, and its score need not be read.
      if exact and not (added and call('ZRANGE', log, '-1', '-1')[1] == member) then
        local newest = tonumber(call('ZRANGE', log, '-1', '-1', 'WITHSCORES')[2])
        if latest and status == 0 and newest > latest then
          newest = latest
        end
        reset = newest - expired
      end
      -- A text of ten numbers costs a third of a table of them.
      return string.format('1 %d %d %d %d %d 0 0 %d %d', now, value, reset, rate, interval, status, wait)
    end
  end
end

-- What is not usual.

