-- Makes the functions for bans: a caller that is refused too often is refused for a time. A
-- fragment of charge.lua.
--
--   strikes, 20 bytes each    c8 id, B place, B 0, I4 number, I6 time, ms: the refusals that count
--   I6 within, I7 sum, I4 start   of the strikes that counted `within` ms, from an offset on
--   I6 ends    when the key expires, ms by the server's clock
--   I6 until, I6 forgotten, I6 room, I4 level, B kind, B magic
--
-- A ban is in force until `until`; each in a row, as long as the last is not `forgotten`, lasts
-- twice as long. `room` is when the limit has room for the call that was refused, not before the
-- ban ends. The terms of a ban are a row: `after` strikes within `within` ms ban for `first` ms,
-- and later for at most `longest`.
--
-- In memory, a ban is a table, with its strikes as those of a log: in the string before `kept`, and
-- then in `tail`. A strike is written over what stands behind the strikes.

bans = {}

-- Returns a ban that was read; false if it is foreign.
local function read_ban(name)
  local page = try('GETRANGE', name, '-260', '-1')
  if page.err then
    return not string.find(page.err, 'WRONGTYPE', 1, true) and error(page.err, 0)
  end
  local size, ban = #page, { name = name, page = page, from = 0, kept = 0, stop = 0, tail = '',
    last = 0, within = 0, sum = 0, start = 0, ends = 0, over = 0, forgotten = 0, room = 0, level = 0,
    is_whole = true, changed = false, new_within = 0 }
  if size == 0 then
    return call('EXISTS', name) == 0 and ban
  elseif size < 47 or sub(page, -2) ~= '\20\183' then
    return false
  end
  ban.stop = (size < 260 and size or call('STRLEN', name)) - 47
  ban.within, ban.sum, ban.start, ban.ends, ban.over, ban.forgotten, ban.room, ban.level =
    unpack('<I6I7I4I6I6I6I6I4', page, size - 46)
  ban.kept, ban.from, ban.is_whole = ban.stop, ban.stop + 47 - size, false
  ban.last = ban.stop > 0 and unpack('<I6', page, size - 52) or 0
  return ban.stop % 20 == 0 and ban.start % 20 == 0 and ban.start <= ban.stop and ban
end

-- Returns the offset of the first strike that counts, and the sum of all that do.
local function count(ban, within)
  local offset, sum, time, gone = ban.start, ban.sum, nil, nil
  if ban.within ~= within then
    -- Another version of the rule wrote it.
    offset, time, sum =
      walk(ban.name, 20, ban.tail, ban.page, ban.from, ban.stop, 0, LATEST, MOST)
    offset = 0
  end
  offset, time, gone =
    walk(ban.name, 20, ban.tail, ban.page, ban.from, ban.stop, offset, now - within, MOST)
  return offset, sum - gone
end

-- Returns the strikes of a ban from an offset on.
local function strikes_of(ban, offset)
  if offset >= ban.kept then
    return sub(ban.tail, offset - ban.kept + 1)
  end
  return call('GETRANGE', ban.name, format('%d', offset), format('%d', ban.kept - 1)) .. ban.tail
end

-- Puts other strikes in place of those of a ban, of which those from `start` on sum to `sum`.
local function replace(ban, within, strikes, last, start, sum)
  ban.kept, ban.stop, ban.tail, ban.last, ban.start, ban.sum, ban.is_whole, ban.changed,
    ban.new_within = 0, #strikes, strikes, last, start, sum, true, true, within
end

-- Sets back what the server's clock wrote before it was set back: a ban lasts no longer than
-- itself, and no strike was later than now.
local function set_back(ban, within)
  -- A level is known for as long again as its ban lasts, unless that is for ever.
  local late = ban.forgotten < LATEST and 2 * ban.over - now - ban.forgotten or 0
  if late > 0 then
    ban.over, ban.forgotten, ban.room = ban.over - late, ban.forgotten - late,
      max(ban.room - late, 0)
  end
  if late > 0 or ban.last > now then
    local strikes = string.gsub(strikes_of(ban, 0), string.rep('.', 20), function(strike)
      return sub(strike, 1, 14) .. pack('<I6', min(now, (unpack('<I6', strike, 15))))
    end)
    replace(ban, within, strikes, min(ban.last, now), ban.start, ban.sum)
  end
end

-- Bans for so many ms a caller for whom the limit has room after `wait` ms.
local function ban_for(it, lasts, more, wait)
  local ban, level = it.ban, it.ban.forgotten > now and it.ban.level or 0
  if not lasts then
    -- Each ban in a row lasts twice as long. One that is doubled so often is the longest.
    lasts = min(it.first * 2 ^ min(level, 50), it.longest)
  end
  replace(ban, it.within, '', 0, 0, 0)
  ban.within, ban.level, ban.over = it.within, min(level + more, 4294967295), min(now + lasts, LATEST)
  ban.forgotten = min(ban.over + lasts, LATEST)
  ban.room = max(ban.over, min(now + wait, LATEST))
end

-- Returns where a caller has a strike.
local function find(strikes, caller)
  local at = string.find(strikes, caller, 1, true)
  while at and at % 20 ~= 1 do
    at = string.find(strikes, caller, at + 1, true)
  end
  return at
end

-- Adds strikes of a caller. One that was sent before may have it. Returns whether they ban.
local function strike(it, caller, number, time, wait, is_sent_again)
  local ban = it.ban
  local start, sum = count(ban, it.within)
  if is_sent_again and find(strikes_of(ban, start), caller) then
    return false
  elseif sum + number >= it.after then
    ban_for(it, nil, 1, wait)
    return true
  end
  ban.last, ban.stop, ban.sum = max(ban.last, time), ban.stop + 20, ban.sum + number
  ban.tail = ban.tail .. caller .. pack('<BI4I6', 0, number, ban.last)
  ban.changed, ban.new_within = true, it.within
  return false
end

-- Takes back the strikes of a caller that is granted after all.
local function forgive(it, caller)
  local ban = it.ban
  local start, sum = count(ban, it.within)
  local strikes = strikes_of(ban, start)
  local at = find(strikes, caller)
  while at do
    sum = sum - unpack('<I4', strikes, at + 10)
    strikes = sub(strikes, 1, at - 1) .. sub(strikes, at + 20)
    replace(ban, it.within, strikes, strikes == '' and 0 or unpack('<I6', strikes, #strikes - 5), 0,
      sum)
    ban.within, at = it.within, find(strikes, caller)
  end
end

-- Reads what a charge says of its ban.
function read_charge(at, is_shadow)
  local key, number, carried, age = unpack('<BBI4I6', arg, at)
  local after, within, first, longest = unpack('<I4I6I6I6', arg, rows[number] + 1)
  if bans[key] == nil then
    bans[key] = read_ban(KEYS[key])
  end
  return { ban = bans[key], carried = carried, age = age, after = after, within = within,
    first = first, longest = longest, is_shadow = is_shadow, granted = 0, wait = 0 }
end

-- Adds the strikes of refusals that were told from memory, if `carries`. Returns whether a ban that
-- is enforced is in force then.
function meet(judged, charges, of, carries, is_sent_again)
  local is_banned = false
  for number = 1, charges do
    local it = judged[number]
    if it and own then
      set_back(it.ban, it.within)
    end
    if it and carries then
      if it.ban.over <= now and it.carried > 0 and it.age < it.within then
        strike(it, of .. '\255', it.carried, max(now - it.age, 0), 0, is_sent_again)
      end
      is_banned = is_banned or it.ban.over > now and not it.is_shadow
    end
  end
  return is_banned
end

-- Strikes for each caller that a charge has no room for. `wait` is the longest of the enforced
-- charges, if they have no room; `counts` is false for a caller that waits, and so asks again.
local function judge(it, callers, of, place, wait, counts, is_sent_again)
  if is_sent_again and it.granted > 0 then
    forgive(it, of .. string.char(place))
  end
  if counts and wait < MOST and it.wait < MOST then
    local caller = it.granted
    while caller < callers
      and not strike(it, pack('<c8B', of, place + caller), 1, now, wait, is_sent_again) do
      caller = caller + 1
    end
  end
end

-- Judges the charges of a request whose groups are told, and tells of the bans: how many ms one in
-- force lasts, when its caller may come back, and how many strikes count.
function judge_request(judged, charges, callers, of, place, asks, wait, is_granted, is_over, is_sent_again)
  for number = 1, charges do
    local it = judged[number]
    if it and asks > 7 then
      ban_for(it, it.age, 0, 0)
    elseif it and not is_over and it.ban.over <= now then
      judge(it, callers, of, place, wait, asks == 0 or it.is_shadow and is_granted, is_sent_again)
    end
  end
  for number = 1, charges do
    local it = judged[number]
    if it then
      local left, start, sum = max(it.ban.over - now, 0), count(it.ban, it.within)
      reply[size + 1], reply[size + 2], reply[size + 3] =
        left, left > 0 and max(it.ban.room - now, 0) or 0, sum
      size = size + 3
    end
  end
end

-- Writes a ban that has changed.
local function write(ban)
  local within, start, sum = ban.new_within, count(ban, ban.new_within)
  local last, text, ends = start < ban.stop and ban.last or 0, ban.tail, ban.ends
  local is_whole = ban.is_whole or ends < server_ms + max(last + within, ban.forgotten) - now
  if is_whole then
    text, start = strikes_of(ban, start), 0
    ends = min(server_ms + max(last + 2 * within, ban.forgotten) - now, LATEST)
  end
  text = text .. pack('<I6I7I4I6I6I6I6I4BB', within, sum, start, ends, ban.over, ban.forgotten,
    ban.room, ban.level, 20, 183)
  if not is_whole then
    call('SETRANGE', ban.name, format('%d', ban.kept), text)
  elseif ends > server_ms then
    call('SET', ban.name, text, 'PX', format('%d', ends - server_ms))
  else
    call('DEL', ban.name)
  end
end

function write_bans()
  for key = 1, #KEYS do
    if bans[key] and bans[key].changed then
      write(bans[key])
    end
  end
end
