-- Takes permits of one limiter for one caller, or reports when they will be free; or takes the same
-- number for each of several callers that do not wait. The hot path.
--
-- KEYS  1-5, see lib/state.lua; three if the caller's limit counts, so that its type is known: the
--       hash, the value and the log of that type
-- ARGV  1  one text with spaces between: whose limit counts, and unless that is 'redis' rate,
--          interval, type and keepAliveTime, as in acquire_list.lua
--       2  the members of the callers, one after the other, all of the same number of permits
--       and two that may be missing:
--       3  now in ms since the epoch, or empty for the server's clock
--       4  '0' unless the permits left are wanted exactly
-- Reply that of acquire_list.lua; in the usual case as one text with spaces between, or, if the
--       limit in force is the caller's, as short as this:
--       a number from 0 on    granted; the permits left, all of which are free in an interval; if
--                             they are wanted exactly, one more is not free before that either
--       the text 'left next'  granted, wanted exactly: permits left; ms until one more is free
--       and if there is one caller:
--       a number below 0      refused, none is left: the negated ms until there is room
--       the text '0 wait ms'  refused, none is left: ms until there is room; ms until all are free
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0. The usual case is decided here, with few commands.
-- Every other case is left to acquire_list.lua, which follows in the same text: a limit to write, a
-- lost key, drift, a wrong clock, a member that no Redisson wrote; and several callers, unless
-- there is room for all, and value and log agree where the permits left are wanted exactly. Before
-- a case is left to it, nothing is written, or only what leaves value and log in agreement. The
-- functions of acquire_list.lua are not defined here yet.
--
-- Numbers cost more time than the commands: each number that goes to Redis, or comes as a score, is
-- printed and parsed. So constants are text, texts are passed on unchanged, and `+ 0` converts a
-- text in half of tonumber's time. An argument costs as much as two numbers: so arguments that are
-- mostly the same are joined in one text, or left out. What `/` and `unpack` make is a float in Lua
-- 5.4, where it is printed as "5.0": `floor` makes it whole before it goes anywhere, unless it is
-- known to be one.

local call, unpack, floor = redis.call, struct.unpack, math.floor
local ARGV = ARGV
local given, members, exact = ARGV[1], ARGV[2], ARGV[4] ~= '0'
local each, callers = unpack('<I4', members, 18), 1
each = each == 1 and 1 or floor(each)
if #members > 21 then
  callers = floor(#members / 21)
end
local permits = each * callers
local limit = call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local as_given = limit[1] and limit[2] and limit[3] and limit[4]
  and 'code ' .. limit[1] .. ' ' .. limit[2] .. ' ' .. limit[3] .. ' ' .. limit[4] == given
local usual, source = as_given, 'code'
if not as_given then
  local given_rate, given_interval, given_type
  source, given_rate, given_interval, given_type = string.match(given, '(%l+) ?(%d*) ?(%d*) ?(%d*)')
  if source == 'code' then
    usual = limit[1] == given_rate and limit[2] == given_interval and limit[3] == given_type
  else
    -- Within no time, of 0 ms or less, everything would be granted.
    local interval = tonumber(limit[2] or nil) or 0
    usual = limit[3] and (source ~= 'keep' or limit[3] == given_type)
      and (tonumber(limit[1]) or math.huge) <= 9007199254740991
      and interval >= 1 and interval <= 9007199254740991 and interval % 1 == 0
  end
end

if usual then
  local rate, interval = floor(limit[1]), floor(limit[2])
  local ahead = (interval - interval % 10) / 10
  local value_key, log = KEYS[2], KEYS[4] or KEYS[3]
  if KEYS[4] and limit[3] == '1' then
    value_key, log = KEYS[3], KEYS[5]
  end
  local value = tonumber(call('GET', value_key))
  local missing = value and permits - value
  if value and value <= rate and permits <= rate and missing <= 100 then
    local now = ARGV[3]
    local own = not now or now == ''
    if own then
      local time = call('TIME')
      now = time[1] .. string.sub('00000' .. time[2], -6, -4)
      -- What follows for unusual cases reads it no more.
      ARGV.now = now
    end

    -- If enough is left, and it is not wanted exactly, only the newest entry is read: it shows
    -- whether the log was lost or has expired. Otherwise, if value and log agree with one permit
    -- per entry, nothing was lost, and few entries are read. Those that have expired are credited
    -- behind the grant, so that the log keeps its TTL.

    local stored, known, first, gone = value, true, 1, 0
    local plenty, expired = missing <= 0, now - interval
    -- `following` is the score of the first entry that has not expired, where that is known.
    local page, score, following
    local entries, agreed
    if plenty and not exact then
      page = call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
    end
    if plenty and (exact or page[2] and page[2] + 0 <= expired) then
      entries = call('ZCARD', log)
      agreed = value + entries == rate and (exact or entries == 1)
    end
    -- A log that this call makes has no TTL yet.
    local fresh = entries == 0
    if agreed then
      -- The oldest say whether any has, and when the next one does.
      page = page or call('ZRANGE', log, '0', callers == 1 and '1' or '0', 'WITHSCORES')
      if page[2] and page[2] + 0 <= expired then
        local old = page
        gone, following = 1, page[4]
        if following and following + 0 <= expired or not following and entries > 1 then
          gone, following = call('ZCOUNT', log, '-inf', string.format('%d', expired)), nil
          -- A log longer than a page is dropped at once, below.
          agreed = permits <= 100 and (gone < entries or entries <= 100)
          gone = agreed and math.min(gone, permits + 100) or 0
          old = agreed and call('ZRANGE', log, '0', gone - 1)
        end
        -- Each of them holds one permit, or value and log agree by chance. If the caller's own is
        -- among them, the call came before, and takes permits once more.
        for at = 1, gone do
          local bytes = #old[at]
          agreed = agreed and (bytes == 21 or bytes == 13 or bytes == 20 or bytes == 8)
            and unpack('<I4', old[at], bytes - 3) == 1 and old[at] ~= members
        end
        gone = agreed and gone or 0
      end
    end

    -- Otherwise, what is left of it. A credit that is not enough is written at once, whatever
    -- becomes of the call.

    if not agreed and callers > 1 and (exact or not plenty) then
      known = false
    elseif not agreed then
      -- If enough is left, the entry that is read already will do. Otherwise the oldest: as many as
      -- may be needed to compute the wait.
      page = page or call('ZRANGE', log, '0', missing > 1 and missing - 1 or '0', 'WITHSCORES')
      score = page[2] and page[2] + 0
      if not score then
        known, fresh = value == rate, true
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
            freed = freed + unpack('<I4', page[first], bytes - 3)
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
          -- The whole log has expired: dropping it is O(1) here, whatever its size, and heals any
          -- drift.
          call('UNLINK', log)
          value, missing, known, fresh, page, gone = rate, 0, true, true, nil, 0
        elseif known and value + freed <= rate then
          call('ZREMRANGEBYRANK', log, '0', first == 3 and '0' or floor((first - 3) / 2))
          freed = floor(freed)
          value, missing = value + freed, missing - freed
          if missing > 0 and freed > 0 then
            call('SET', value_key, floor(value), 'KEEPTTL')
          end
        else
          known = false
        end
      end
    end

    -- The decision.

    local status, wait, wrote, newest = nil, 0, true, false
    -- The score of the entry that expires next, if it is reported, and whether one was added that
    -- expires in an interval.
    local oldest, added = exact and page and page[first + 1], 0
    if not known then
      status = nil
    elseif value >= permits then
      status = 1
      -- NX: a call that was sent twice finds its members and takes nothing more.
      if callers == 1 then
        added = call('ZADD', log, 'NX', now, members)
      else
        if gone > 0 then
          -- Before, as callers' own may be among them.
          call('ZREMRANGEBYRANK', log, '0', gone - 1)
          fresh = gone == entries
        end
        local add, at = { 'ZADD', log, 'NX' }, 3
        for start = 1, #members, 21 do
          add[at + 1], add[at + 2] = now, string.sub(members, start, start + 20)
          at = at + 2
        end
        -- Lua 5.2 has moved it; Redis lets no script name a global that is not there.
        added = call((rawget(_G, 'unpack') or table.unpack)(add))
      end
      if added > 0 then
        value = value - added * each
        newest = exact
          and (gone == entries or call('ZCOUNT', log, '(' .. now, '+inf') == 0)
      end
      if gone > 0 then
        if callers == 1 then
          call('ZREMRANGEBYRANK', log, '0', gone == 1 and '0' or gone - 1)
        end
        oldest = exact and not (gone == entries and newest)
          and (following or call('ZRANGE', log, '0', '0', 'WITHSCORES')[2])
        value = value + gone
      end
      if value ~= stored then
        -- A value that is no whole number is replaced by one that is.
        local less = permits == 1 and '-1' or -permits
        if stored - value ~= permits
          or type(redis.pcall('INCRBY', value_key, less)) ~= 'number' then
          value = floor(value)
          call('SET', value_key, value, 'KEEPTTL')
        end
      end
    elseif call('ZSCORE', log, members) then
      -- The same call came before, and its own permits were the last.
      status = 1
    else
      -- Walk from the oldest entry to the one whose expiry makes enough room. A refusal that wrote
      -- nothing renews no TTL: the keys outlast what it met. But if no caller brings the limit, a
      -- limiter in use must not expire.
      wrote = value ~= stored or source == 'redis'
      local freed, at = 0, first
      while freed < missing do
        local held = page[at]
        local bytes = held and #held
        if bytes ~= 21 and bytes ~= 13 and bytes ~= 20 and bytes ~= 8 then
          break
        end
        freed = freed + unpack('<I4', held, bytes - 3)
        at = at + 2
      end
      if freed >= missing then
        local due = at == 3 and score or page[at - 1] + 0
        wait = floor(due - expired)
        status = 0
      end
    end

    -- Mostly what was just added is the newest, and no score need be read.
    if status and newest ~= true and (exact or own and status == 0) then
      newest = (call('ZRANGE', log, '-1', '-1', 'WITHSCORES')[2] or expired) + 0
      -- By the server's clock, a later score was written by a wrong one: acquire_list.lua, which
      -- sets such scores back, decides once more, and finds what was granted here.
      if own and newest > now + ahead then
        status = nil
      end
    end

    if status then
      -- See keep_alive in state.lua. A refusal that wrote nothing only puts a lost TTL back, or
      -- shortens one that `expire` has set.
      local keep = as_given and limit[4] + 0 or tonumber(limit[4] or nil) or 0
      if keep > 0 then
        local life = interval + ahead
        local enough = not wrote and 0 or keep / 2 > life and keep / 2 or life
        local ttl = keep > life and keep or life
        local left = fresh and -1 or call('PTTL', value_key)
        if left >= enough and left <= ttl and limit[3] == '1' then
          left = call('PTTL', KEYS[1])
          left = left >= enough and left <= ttl and call('PTTL', log) or -1
        end
        if left < enough or left > ttl then
          ttl = floor(ttl)
          call('PEXPIRE', KEYS[1], ttl)
          call('PEXPIRE', value_key, ttl)
          call('PEXPIRE', log, ttl)
        end
      else
        local ttl = call('PTTL', KEYS[1])
        if ttl > 0 and (wrote or call('PTTL', value_key) < 0) then
          call('PEXPIRE', value_key, ttl)
          call('PEXPIRE', log, ttl)
        end
      end
      local reset = interval
      if exact and newest ~= true then
        reset = math.max(0, newest - expired)
      end

      -- A text of eleven numbers costs a third of a table of them, and one number a tenth of that.

      local until_next = 0
      if exact and status == 1 and value >= 0 then
        until_next = oldest and math.max(0, oldest - expired) or 0
        -- By a clock that is behind, what was just added expires first.
        if added > 0 and (not oldest or until_next > interval) then
          until_next = interval
        end
      end
      if source == 'code' then
        if status == 1 and value >= 0 and reset == interval then
          return exact and until_next ~= interval and string.format('%d %d', value, until_next)
            or floor(value)
        elseif status == 0 and value == 0 and wait >= 1 then
          return reset == interval and -wait or string.format('0 %d %d', wait, reset)
        end
      end
      return string.format('1 %d %d %d %d %d 0 0 %d', now, value, reset, rate, interval, until_next)
        .. string.rep(string.format(' %d %d', status, wait), callers)
    end
  end
end

-- The unusual cases follow: with keys for either type, and each caller with arguments of its own.

if not KEYS[4] then
  KEYS[3], KEYS[4], KEYS[5] = KEYS[2], KEYS[3], KEYS[3]
end
ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7] =
  ARGV[3] or '', exact and '1' or '0', string.match(given, '(%l+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)')
for at = 0, callers - 1 do
  ARGV[4 * at + 8], ARGV[4 * at + 9] = '0', string.format('%d', each)
  ARGV[4 * at + 10], ARGV[4 * at + 11] = string.sub(members, 21 * at + 1, 21 * at + 21), '0'
end

--- @include sliding_log/acquire_list.lua
