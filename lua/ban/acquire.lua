-- Takes permits by the script of another algorithm, which is its function `decide`, unless a ban is
-- in force; counts refusals, and bans the callers that had too many.
--
-- KEYS  those of that script, five for each limiter; then two for each limiter that bans:
--       {N}:strikes  sorted set of the refusals that may count; score ms, member: 16 bytes, how
--                    many as 32 bits little-endian
--       {N}:ban      text of four numbers: when the ban ends; how many bans in a row refusals have
--                    caused; when that is forgotten, and the key vanishes; when the call that was
--                    refused has room, not before the end
-- ARGV  1  the number of limiters
--       for each limiter six, empty if it has no ban: the number of refusals that ban; the
--          ms within which they count; the ms of the first ban and of the longest; how many
--          refusals were answered from memory, and how many ms ago the first of them was
--       an id for those refusals, 16 bytes
--       then those of that script
-- Reply 1  that of the script; nil if a ban refuses all callers
--       for each limiter six:
--          ms until its ban ends, 0 for none; ms until a banned caller may come back
--          the first caller that is banned, unless it was granted; 0 for none
--          how many refusals count
--          rate and interval as stored, where 1 is nil; else 0
--
-- Redisson has no bans. A call may come twice: a banned caller takes nothing, unless the same call
-- was granted before, and each refusal counts once. Refusals of callers that wait do not count,
-- because they ask again.
--
--- @include lib/decide.lua
--- @include sliding_log/acquire_list.lua, or another algorithm's

end

local call, limiters = redis.call, ARGV[1] + 0
local begin = 2 + 6 * limiters
local given = ARGV[begin + 1]
local now = given
if given == '' then
  local time = call('TIME')
  now = time[1] .. string.sub('00000' .. time[2], -6, -4)
end
local clock = now
now = now + 0
-- A caller's clock may be slower than the server's.
local slower = given == '' and 0 or 60000

local keys, args = {}, {}
for place = 1, 5 * limiters do
  keys[place] = KEYS[place]
end
for place = begin + 1, #ARGV do
  args[place - begin] = ARGV[place]
end
if given == '' then
  args.now = clock
end
local width = 1 + 3 * limiters
local callers = math.floor((#args - 2 - 5 * limiters) / width)

-- Returns where the arguments of a caller for a limiter begin: permits, member, how it takes.
local function ask_of(caller, place)
  return 2 + 5 * limiters + width * (caller - 1) + 3 * place - 1
end

local function is_shadow(caller, place)
  return args[ask_of(caller, place) + 2] == '1'
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The state.

local bans, key = {}, 5 * limiters
for place = 1, limiters do
  local at = 6 * place - 4
  local ban = { after = tonumber(ARGV[at]), first = 0, ends = 0, level = 0, room = 0, count = 0 }
  if ban.after then
    ban.within, ban.lasting, ban.longest = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
    ban.carried, ban.age = ARGV[at + 4] + 0, ARGV[at + 5] + 0
    ban.strikes, ban.key = KEYS[key + 1], KEYS[key + 2]
    key = key + 2
    local ends, level, forgotten, room =
      string.match(call('GET', ban.key) or '', '^(%d+) (%d+) (%d+) (%d+)$')
    if ends and forgotten + 0 > now then
      ban.ends, ban.level, ban.room = ends + 0, level + 0, room + 0
      -- A level is known for as long again as its ban lasts. By the server's clock, a ban that has
      -- longer to go was set before that clock was set back. A full memory keeps it as it is.
      local late = given == '' and 2 * ban.ends - forgotten - now or 0
      if late > 0 then
        ban.ends, ban.room, forgotten = ban.ends - late, ban.room - late, forgotten - late
        local value = { whole(ban.ends), level, whole(forgotten), whole(ban.room) }
        redis.pcall('SET', ban.key, table.concat(value, ' '), 'PX', whole(forgotten - now))
      end
    end
    if ban.ends <= now then
      -- Nothing is removed yet: after a write, a server whose memory is full would refuse no other.
      local strikes = call('ZRANGE', ban.strikes, '0', '-1', 'WITHSCORES')
      for at = 1, #strikes, 2 do
        if given == '' and strikes[at + 1] + 0 > now then
          redis.pcall('ZADD', ban.strikes, 'XX', clock, strikes[at])
        end
        if strikes[at + 1] + 0 > now - ban.within then
          ban.count = ban.count + math.floor((struct.unpack('<I4', strikes[at], 17)))
        end
      end
    end
  end
  bans[place] = ban
end

-- Counts refusals, once for each id, and sets the ban if they are enough. Returns whether they are.
local function strike(ban, id, number, age, wait)
  local score, member = whole(now - age), id .. struct.pack('<I4', number)
  local added = redis.pcall('ZADD', ban.strikes, 'NX', score, member)
  if type(added) == 'table' then
    -- Where no memory is left, the refusal stands and counts for nothing.
    if string.find(added.err, 'OOM', 1, true) then
      return false
    end
    added = call('ZADD', ban.strikes, 'NX', score, member)
  end
  if added == 0 then
    if call('ZSCORE', ban.strikes, member) + 0 > now - ban.within then
      return false
    end
    -- The call was refused long ago: that one counts no more.
    call('ZADD', ban.strikes, score, member)
  end
  ban.count = ban.count + number
  if ban.count < ban.after then
    call('ZREMRANGEBYSCORE', ban.strikes, '-inf', whole(now - ban.within))
    call('PEXPIRE', ban.strikes, whole(ban.within + slower))
    return false
  end
  local lasts = math.floor(math.min(ban.lasting * 2 ^ ban.level, ban.longest))
  ban.ends, ban.level, ban.count = now + lasts, ban.level + 1, 0
  ban.room = math.max(ban.ends, now + wait)
  local value = { whole(ban.ends), whole(ban.level), whole(ban.ends + lasts), whole(ban.room) }
  call('SET', ban.key, table.concat(value, ' '), 'PX', whole(2 * lasts + slower))
  call('UNLINK', ban.strikes)
  return true
end

local banned = false
for place = 1, limiters do
  local ban = bans[place]
  if ban.after and ban.ends <= now and ban.carried > 0 and ban.age < ban.within then
    strike(ban, ARGV[begin], ban.carried, ban.age, 0)
  end
  if ban.ends > now then
    ban.first = 1
    banned = banned or not is_shadow(1, place)
  end
end

-- The decision. While a ban is in force, only callers that were granted before are granted: what
-- others ask for is more than any limit has.

local held = {}
for caller = 1, banned and callers or 0 do
  for place = 1, limiters do
    local member = args[ask_of(caller, place) + 1]
    if call('ZSCORE', keys[5 * place - 1], member) or call('ZSCORE', keys[5 * place], member) then
      held[caller] = true
    end
  end
end
local reply = false
if not banned or next(held) then
  for caller = 1, banned and callers or 0 do
    for place = 1, held[caller] and 0 or limiters do
      args[ask_of(caller, place)] = '100000000000000000'
    end
  end
  reply = decide(keys, args)
end

-- The refusals. A reply of an algorithm is an array: see sliding_log/acquire_list.lua.

for caller = 1, reply and not banned and reply[1] == 1 and callers or 0 do
  local at = 2 + 7 * limiters + 2 * limiters * (caller - 1)
  local granted, above_rate, wait = true, false, 0
  for place = 1, limiters do
    if not is_shadow(caller, place) then
      local status = reply[at + 2 * place - 1]
      granted, above_rate = granted and status == 1, above_rate or status == 2
      wait = math.max(wait, reply[at + 2 * place])
    end
  end
  local waits = args[ask_of(caller, 1) - 1] == '1'
  for place = 1, limiters do
    local ban, status = bans[place], reply[at + 2 * place - 1]
    local id = string.sub(args[ask_of(caller, place) + 1], 2, 17)
    local is_last = not waits or is_shadow(caller, place) and granted
    if not ban.after or ban.first > 0 then
      -- It has no ban, or has banned this caller.
    elseif status == 1 and ban.count > 0 then
      -- Refused, and granted when it came again. One that is too old has not been counted.
      local member = id .. struct.pack('<I4', 1)
      local score = call('ZSCORE', ban.strikes, member)
      if score then
        call('ZREM', ban.strikes, member)
        ban.count = ban.count - (score + 0 > now - ban.within and 1 or 0)
      end
    elseif status == 0 and not above_rate and is_last and strike(ban, id, 1, 0, wait) then
      ban.first = caller
    end
  end
end

local replies = { reply }
for place = 1, limiters do
  local ban = bans[place]
  local limit = not reply and call('HMGET', keys[5 * place - 4], 'rate', 'interval') or {}
  local left = math.max(ban.ends - now, 0)
  for _, number in ipairs({ left, left > 0 and ban.room - now or 0, ban.first, ban.count,
    tonumber(limit[1] or nil) or 0, tonumber(limit[2] or nil) or 0 }) do
    replies[#replies + 1] = number
  end
end
return replies
