-- Takes permits of several limiters for one caller. The usual case: each has room, and its log is
-- neither lost nor expired; if the permits left are wanted exactly, value and log agree by the
-- number of entries, and few have expired.
--
-- KEYS  three of each limiter: the hash, and the value and the log of the type that its caller
--       brings
-- ARGV  for each limiter two: those of acquire.lua for one caller
--       and three that may be missing: the last two of acquire.lua; for each limiter a digit,
--       '1' if its permits are a shadow
-- Reply that of acquire_list.lua; in the usual case as one text with spaces between; or in brief,
--       if all limits are in force as given: the time that was used, and for each limiter permits
--       left, ms until all are free, ms until one more is
--
-- Redisson has no operation on several limiters. As in acquire.lua, each is read and checked
-- before the first write. All else is left to acquire_list.lua, which follows in the same text.

local call, unpack, floor, ARGV, KEYS = redis.call, struct.unpack, math.floor, ARGV, KEYS
local limiters = floor(#KEYS / 3)
local now, exact = ARGV[2 * limiters + 1] or '', ARGV[2 * limiters + 2] ~= '0'
local own = now == ''
if own then
  local time = call('TIME')
  now = time[1] .. string.sub('00000' .. time[2], -6, -4)
  -- What follows for unusual cases reads it no more.
  ARGV.now = now
end

local books, usual, brief = {}, true, true
for place = 1, limiters do
  local given, member, log = ARGV[2 * place - 1], ARGV[2 * place], KEYS[3 * place]
  local permits = unpack('<I4', member, 18)
  permits = permits == 1 and 1 or floor(permits)
  local limit = call('HMGET', KEYS[3 * place - 2], 'rate', 'interval', 'type', 'keepAliveTime')
  local value = tonumber(call('GET', KEYS[3 * place - 1]))
  local as_given = limit[1] and limit[2] and limit[3] and limit[4]
    and 'code ' .. limit[1] .. ' ' .. limit[2] .. ' ' .. limit[3] .. ' ' .. limit[4] == given
  if not as_given then
    local rate, interval, limit_type = string.match(given, ' (%d+) (%d+) (%d)')
    usual = limit[1] == rate and limit[2] == interval and limit[3] == limit_type
    brief = false
  end
  if not usual or not value or value < permits then
    usual = false
    break
  end
  local rate, interval, expired = limit[1] + 0, limit[2] + 0, now - limit[2]
  local page = call('ZRANGE', log, exact and '0' or '-1', exact and '1' or '-1', 'WITHSCORES')
  local entries, oldest, gone = exact and call('ZCARD', log) or #page, page[2], 0
  if not exact then
    usual = not oldest and value == rate
      or oldest and oldest + 0 > expired and value <= rate
  elseif value + entries ~= rate then
    usual = false
  elseif oldest and oldest + 0 <= expired then
    local old = page
    gone, oldest = 1, page[4]
    if oldest and oldest + 0 <= expired then
      gone = call('ZCOUNT', log, '-inf', string.format('%d', expired))
      old = gone <= 100 and call('ZRANGE', log, '0', gone - 1)
      oldest = call('ZRANGE', log, gone, gone, 'WITHSCORES')[2]
    end
    -- Each of them holds one permit, or value and log agree by chance.
    usual = old and true
    for at = 1, old and gone or 0 do
      usual = usual and #old[at] == 21 and unpack('<I4', old[at], 18) == 1
    end
  end
  if not usual then
    break
  end
  books[place] = { permits = permits, member = member, limit = limit, value = value, log = log,
    rate = rate, interval = interval, expired = expired, entries = entries, gone = gone,
    oldest = oldest }
end

-- The same call came before if one has its member: it took all or nothing, and takes nothing more.
for place = 1, usual and limiters or 0 do
  if call('ZADD', books[place].log, 'NX', now, books[place].member) == 0 then
    for added = 1, place - 1 do
      call('ZREM', books[added].log, books[added].member)
    end
    usual = false
    break
  end
end

if usual then
  local reply, latest = brief and now or '1 ' .. now, true
  for place = 1, limiters do
    local hash, value_key, book = KEYS[3 * place - 2], KEYS[3 * place - 1], books[place]
    local log, limit, interval, gone = book.log, book.limit, book.interval, book.gone
    -- Mostly what was just added is alone, or the newest.
    local reset, until_next = interval, exact and interval or 0
    if exact and gone < book.entries then
      if call('ZCOUNT', log, '(' .. now, '+inf') > 0 then
        reset = call('ZRANGE', log, '-1', '-1', 'WITHSCORES')[2] - book.expired
        latest = latest and reset <= interval + (interval - interval % 10) / 10
      end
      until_next = math.min(book.oldest - book.expired, interval)
    end
    if gone > 0 then
      call('ZREMRANGEBYRANK', log, '0', gone == 1 and '0' or gone - 1)
    end
    local less = book.permits - gone
    -- A value that is no whole number is replaced by one that is.
    if less ~= 0
      and type(redis.pcall('INCRBY', value_key, less == 1 and '-1' or -less)) ~= 'number' then
      book.value = floor(book.value)
      call('SET', value_key, book.value - less, 'KEEPTTL')
    end
    -- See keep_alive in lib/state.lua.
    local keep, life, ttl = tonumber(limit[4]) or 0, interval + (interval - interval % 10) / 10, 0
    local enough, most = keep / 2 > life and keep / 2 or life, keep > life and keep or life
    local remains = keep > 0 and book.entries > 0 and call('PTTL', value_key) or -1
    if remains >= enough and remains <= most and limit[3] == '1' then
      remains = call('PTTL', hash)
      remains = remains >= enough and remains <= most and call('PTTL', log) or -1
    end
    if keep <= 0 then
      ttl = call('PTTL', hash)
    elseif remains < enough or remains > most then
      ttl = floor(most)
      call('PEXPIRE', hash, ttl)
    end
    if ttl > 0 then
      call('PEXPIRE', value_key, ttl)
      call('PEXPIRE', log, ttl)
    end
    local left = book.value - book.permits + gone
    if brief then
      reply = reply .. string.format(' %d %d %d', left, reset, until_next)
    else
      reply = reply .. string.format(' %d %d %d %d 0 0 %d', left, reset, book.rate, interval,
        until_next)
    end
  end
  -- By the server's clock, a later score was written by a wrong one: acquire_list.lua, which sets
  -- such scores back, finds what was granted here.
  if latest or not own then
    return brief and reply or reply .. string.rep(' 1 0', limiters)
  end
end

-- The unusual cases follow, with keys for either type, and the arguments of acquire_list.lua.

local list, shadows = { ARGV[2 * limiters + 1] or '', exact and '1' or '0' },
  ARGV[2 * limiters + 3] or ''
list[5 * limiters + 3] = '0'
for place = limiters, 1, -1 do
  local hash, value_key, log = KEYS[3 * place - 2], KEYS[3 * place - 1], KEYS[3 * place]
  KEYS[5 * place - 4], KEYS[5 * place - 3], KEYS[5 * place - 2] = hash, value_key, value_key
  KEYS[5 * place - 1], KEYS[5 * place] = log, log
  local given, take, member = 5 * place - 2, 5 * limiters + 3 * place + 1, ARGV[2 * place]
  list[given], list[given + 1], list[given + 2], list[given + 3], list[given + 4] =
    string.match(ARGV[2 * place - 1], '(%l+) (%d+) (%d+) (%d) (%d+)')
  list[take], list[take + 1] = string.format('%d', (unpack('<I4', member, 18))), member
  list[take + 2] = string.sub(shadows, place, place) == '1' and '1' or '0'
end
ARGV = list

--- @include sliding_log/acquire_list.lua
