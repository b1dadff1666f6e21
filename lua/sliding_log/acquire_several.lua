-- Takes permits of several limiters for one caller. The usual case: value and log of each agree by
-- the number of entries, and each has room.
--
-- KEYS  three of each limiter: the hash, and the value and the log of the type that its caller
--       brings
-- ARGV  those of acquire_list.lua for one caller; no use ahead of time
-- Reply that of acquire_list.lua, as one text with spaces between
--
-- Redisson has no operation on several limiters. As in acquire.lua, each is read and checked
-- before the first write. All else is left to acquire_list.lua, which follows in the same text.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local exact, limiters, now = ARGV[2] == '1', #KEYS / 3, ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] .. string.sub('00000' .. time[2], -6, -4)
end

local books, usual = {}, true
for place = 1, limiters do
  local given, take, log = 5 * place - 2, 5 * limiters + 3 * place + 1, KEYS[3 * place]
  local permits, member = ARGV[take] + 0, ARGV[take + 1]
  local limit = call('HMGET', KEYS[3 * place - 2], 'rate', 'interval', 'type', 'keepAliveTime')
  local value = tonumber(call('GET', KEYS[3 * place - 1]))
  if limit[1] ~= ARGV[given + 1] or limit[2] ~= ARGV[given + 2] or limit[3] ~= ARGV[given + 3]
    or not value or value < permits then
    usual = false
    break
  end
  local rate, interval, entries = limit[1] + 0, limit[2] + 0, call('ZCARD', log)
  local few, expired = permits <= 10, now - interval
  local page = exact and call('ZRANGE', log, '0', few and permits or '0', 'WITHSCORES') or {}
  -- Those that are dropped hold one permit each, or value and log agree by chance.
  local oldest, at, single = page[2], 1, true
  while page[at] and page[at + 1] + 0 <= expired do
    single = single and few and #page[at] == 21 and struct.unpack('<I4', page[at], 18) == 1
    at = at + 2
  end
  local gone = (at - 1) / 2
  if gone > 0 and not page[at] and gone < entries then
    gone = call('ZCOUNT', log, '-inf', string.format('%d', expired))
  end
  if value + entries ~= rate or not single or gone == entries and entries > 100 then
    usual = false
    break
  end
  books[place] = { permits = permits, member = member, limit = limit, value = value, log = log,
    rate = rate, interval = interval, entries = entries, gone = gone, oldest = oldest }
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
  local reply = '1 ' .. now
  for place = 1, limiters do
    local hash, value_key, book = KEYS[3 * place - 2], KEYS[3 * place - 1], books[place]
    local log, limit, interval, gone = book.log, book.limit, book.interval, book.gone
    local reset, until_next = interval, 0
    if exact then
      if gone < book.entries and call('ZCOUNT', log, '(' .. now, '+inf') > 0 then
        reset = call('ZRANGE', log, '-1', '-1', 'WITHSCORES')[2] + interval - now
      end
      local oldest = gone > 0 and call('ZRANGE', log, gone, gone, 'WITHSCORES')[2] or book.oldest
      until_next = math.min(oldest or now, now) + interval - now
    end
    local drop = math.min(gone, book.permits + 1)
    if drop > 0 then
      call('ZREMRANGEBYRANK', log, '0', drop - 1)
    end
    local less = book.permits - drop
    -- A value that is no whole number is replaced by one that is.
    if less ~= 0 and type(redis.pcall('INCRBY', value_key, -less)) ~= 'number' then
      call('SET', value_key, book.value - less, 'KEEPTTL')
    end
    -- See keep_alive in lib/state.lua.
    local keep, life, ttl = tonumber(limit[4]) or 0, interval + math.floor(interval / 10), 0
    local enough = math.max(keep / 2, life)
    if keep <= 0 then
      ttl = call('PTTL', hash)
    elseif book.entries == 0 or call('PTTL', value_key) < enough
      or limit[3] == '1' and (call('PTTL', hash) < enough or call('PTTL', log) < enough) then
      ttl = math.max(keep, life)
      call('PEXPIRE', hash, ttl)
    end
    if ttl > 0 then
      call('PEXPIRE', value_key, ttl)
      call('PEXPIRE', log, ttl)
    end
    reply = reply .. string.format(' %d %d %d %d 0 0 %d', book.value - book.permits + gone, reset,
      book.rate, interval, until_next)
  end
  return reply .. string.rep(' 1 0', limiters)
end

-- The unusual cases follow, with keys for either type.

for place = limiters, 1, -1 do
  local hash, value_key, log = KEYS[3 * place - 2], KEYS[3 * place - 1], KEYS[3 * place]
  KEYS[5 * place - 4], KEYS[5 * place - 3], KEYS[5 * place - 2] = hash, value_key, value_key
  KEYS[5 * place - 1], KEYS[5 * place] = log, log
end

--- @include sliding_log/acquire_list.lua
