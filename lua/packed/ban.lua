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
-- In memory, a ban is a table; its strikes are those of the string before `kept`, and then those of
-- `tail`. `over` is `until`, `last` the time of the last strike, and `new_within` what is written
-- as `within`. A strike is written over what stands behind the strikes.

bans = {}
--- @include cut_times.lua

-- Returns a ban that was read; false if it is foreign.
local function read_ban(key)
  local name = KEYS[key]
  local page = try('GETRANGE', name, '-260', '-1')
  if page.err then
    return not string.find(page.err, 'WRONGTYPE', 1, true) and error(page.err, 0)
  end
  local is_new = page == '' and call('EXISTS', name) == 0
  page = is_new and string.rep('\0', 45) .. '\20\183' or page
  local size = #page
  local stop = (size < 260 and size or call('STRLEN', name)) - 47
  if stop < 0 or stop % 20 > 0 or sub(page, -2) ~= '\20\183' then
    return false
  end
  local within, sum, start, ends, over, forgotten, room, level =
    unpack('<I6I7I4I6I6I6I6I4', page, size - 46)
  local last = stop > 0 and unpack('<I6', page, size - 52) or 0
  return start % 20 == 0 and start <= stop and { key = key, name = name, page = page, tail = '',
    from = stop + 47 - size, kept = stop, stop = stop, last = last, within = within, sum = sum,
    start = start, ends = ends, over = over, forgotten = forgotten, room = room, level = level,
    is_whole = is_new, changed = false, new_within = within }
end

-- Returns the offset of the first strike that counts, and the sum of all that do.
local function count(ban, within)
  local name, tail, page, from, stop = ban.name, ban.tail, ban.page, ban.from, ban.stop
  local offset, sum, time, gone = ban.start, ban.sum, nil, nil
  if ban.within ~= within then
    -- Another version of the rule wrote it.
    offset, sum = 0, select(3, walk(name, 20, tail, page, from, stop, 0, LATEST, MOST))
  end
  offset, time, gone = walk(name, 20, tail, page, from, stop, offset, now - within, MOST)
  -- Of a state that was changed by hand, the sum may be any number.
  return offset, max(sum - gone, 0)
end

-- Returns the strikes that count without those of a caller, the sum of the latter, and that of all.
local function without(ban, within, caller)
  local start, all = count(ban, within)
  local strikes, sum = rest_of(ban.name, ban.tail, ban.stop, start), 0
  strikes = string.gsub(strikes, string.rep('.', 20), function(strike)
    if sub(strike, 1, 9) == caller then
      sum = sum + unpack('<I4', strike, 11)
      return ''
    end
  end)
  return strikes, sum, all
end

-- Puts other strikes in place of those of a ban. Those from `start` on sum to `sum`.
local function replace(ban, within, strikes, start, sum)
  ban.kept, ban.stop, ban.tail, ban.start, ban.sum = 0, #strikes, strikes, start, sum
  ban.last = strikes ~= '' and unpack('<I6', strikes, #strikes - 5) or 0
  ban.is_whole, ban.changed, ban.new_within = true, true, within
end

-- Sets back what the server's clock wrote before it was set back: a ban lasts no longer than
-- itself, and no strike was later than now.
local function set_back(ban, within)
  -- A level is known for as long again as its ban lasts, unless that is for ever.
  local lasts = max(ban.forgotten - ban.over, 0)
  local late = ban.forgotten < LATEST and max(ban.over - now - lasts, 0) or 0
  if late > 0 or ban.last > now then
    ban.over, ban.forgotten, ban.room =
      ban.over - late, max(ban.forgotten - late, 0), max(ban.room - late, 0)
    local strikes = rest_of(ban.name, ban.tail, ban.stop, 0)
    replace(ban, within, cut_times(strikes, 20, now), ban.start, ban.sum)
  end
end

-- Bans a caller for so many ms, and the limit has room for it then. Without `lasts`, for as long as
-- the terms say, which makes the next ban longer.
local function ban_for(it, lasts, room)
  local ban, level = it.ban, it.ban.forgotten > now and it.ban.level or 0
  replace(ban, it.within, '', 0, 0)
  ban.within, ban.level = it.within, lasts and level or min(level + 1, 4294967295)
  -- Any ban that is doubled so often is the longest.
  lasts = lasts or min(it.first * 2 ^ min(level, 50), it.longest)
  ban.over = min(now + lasts, LATEST)
  ban.forgotten, ban.room = min(ban.over + lasts, LATEST), max(ban.over, min(room, LATEST))
end

-- Adds strikes of a caller. One that was sent before may have them. Returns whether they ban.
local function strike(it, caller, number, time, room)
  local ban, _, sum = it.ban, count(it.ban, it.within)
  if is_sent_again and select(2, without(ban, it.within, caller)) > 0 then
    return false
  elseif sum + number >= it.after then
    ban_for(it, nil, room)
    return true
  end
  ban.last, ban.stop, ban.sum = max(ban.last, time), ban.stop + 20, ban.sum + number
  ban.tail = ban.tail .. caller .. pack('<BI4I6', 0, number, ban.last)
  ban.changed, ban.new_within = true, it.within
end

-- Returns what a charge says of its ban, which stands at a place of the argument. `judged` has them
-- in order, and each once more under its place, negated.
function read_charge(at)
  if judged[-at] then
    return judged[-at]
  end
  local key, number, carried, age = unpack('<BBI4I6', arg, at)
  local after, within, first, longest = unpack('<I4I6I6I6', arg, rows[number] + 1)
  if bans[key] == nil then
    bans[key] = read_ban(key)
  end
  local it = { ban = bans[key], carried = carried, age = age, after = after, within = within,
    first = first, longest = longest, is_shadow = flags % 2 == 1, granted = 0, wait = 0,
    room = asks > 7 and permits or 0 }
  judged[#judged + 1], judged[-at] = it, it
  return it
end

-- Adds the strikes that a request reports, if `carries`. Returns whether an enforced ban is in
-- force then.
function meet(carries)
  local is_banned = false
  for _, it in ipairs(judged) do
    if by_server then
      set_back(it.ban, it.within)
    end
    if carries and it.ban.over <= now and it.carried > 0 and it.age < it.within then
      strike(it, of .. '\255', it.carried, max(now - it.age, 0), now + it.room)
    end
    is_banned = is_banned or carries and it.ban.over > now and not it.is_shadow
  end
  return is_banned
end

-- Takes back the strikes of a caller that is granted after all; strikes for each caller that a
-- charge has no room for. A caller that waits asks again: only its last refusal counts.
local function judge_charge(it, is_last)
  if is_sent_again and it.granted > 0 then
    local strikes, gone, all = without(it.ban, it.within, of .. string.char(of_place))
    if gone > 0 then
      replace(it.ban, it.within, strikes, 0, all - gone)
      it.ban.within = it.within
    end
  end
  local caller = is_last and wait < MOST and it.wait < MOST and it.granted or callers
  while caller < callers
    and not strike(it, pack('<c8B', of, of_place + caller), 1, now, now + wait) do
    caller = caller + 1
  end
end

-- Puts a ban among what is written.
local function put(ban)
  local key, within, start, sum = ban.key, ban.new_within, count(ban, ban.new_within)
  -- Without a strike, the ban alone counts, also by a clock near 1970.
  local last, tail, ends = start < ban.stop and ban.last or -2 * within, ban.tail, ban.ends
  offsets[key] = ban.kept
  if ban.is_whole or ends < server_ms + max(last + within, ban.forgotten) - now then
    tail, start = rest_of(ban.name, ban.tail, ban.stop, start), 0
    ends = min(server_ms + max(last + 2 * within, ban.forgotten) - now, LATEST)
    lives[key] = ends - server_ms
  end
  texts[key] = tail .. pack('<I6I7I4I6I6I6I6I4BB', within, sum, start, ends, ban.over,
    ban.forgotten, ban.room, ban.level, 20, 183)
end

-- Judges the charges of a request that has its groups, unless that is settled, and adds its bans to
-- the reply: how many ms one in force lasts, when its caller may come back, and how many strikes
-- count.
function judge(is_settled, is_granted)
  for _, it in ipairs(judged) do
    if asks == 4 then
      ban_for(it, it.age, 0)
      it.ban.by_hand = true
    elseif not is_settled and it.ban.over <= now then
      judge_charge(it, asks == 0 or it.is_shadow and is_granted)
    end
  end
  for _, it in ipairs(judged) do
    local ban, start, sum = it.ban, count(it.ban, it.within)
    local left = max(ban.over - now, 0)
    reply[size + 1], reply[size + 2], reply[size + 3] =
      left, left > 0 and max(ban.room - now, 0) or 0, sum
    size = size + 3
    if ban.changed then
      put(ban)
    end
  end
end
