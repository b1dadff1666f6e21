-- Decides requests for permits of limiters. A request is a list of charges, and takes permits of
-- all or none. Requests are decided in order: each sees what those before it took. Each state is
-- read once, and written once after all decisions, so all are checked before the first write.
--
-- KEYS  the states of limiters, {N}~ or {N}~:calendar, and of bans, {N}~:ban or {N}:ban~, in any
--       order; {N}:ban~~ for the state of a limiter of which only the ban is asked for
-- ARGV  1, packed, little-endian:
--       a lone call, of one caller of key 1 by row 1, of a log or a window:
--         c8 id, I6 now, B 0, the row, I4 permits
--       one that only settles what the caller took of key 1, by any row: see settle.lua
--         c8 id, I6 now, B 255, the row, I4 permits, I4 permits that it took, I7 mark, I7 given
--       any other:
--         8 bytes of any value, I6 now, B rows, B flags (1: tell the time; 2: tell how many numbers
--         each request has), the rows, the requests
--       now   ms; 0: the server's clock
--       rows  see row.lua
--       request  B callers, B charges, B flags, c8 id of each caller, the charges. Of one caller
--             that was sent before, always if it reports: B 0, c8 id, B place, B charges, B flags,
--             the charges
--             flags 1: it waits, so a refusal is no strike; 2: it only asks; 4: it bans; 8: it
--             reports refusals, and asks; 16: it settles what its caller took by one charge, behind
--             which stand I4 permits that it took, I7 mark, I7 given: see settle.lua
--             A log knows each caller by its id, other kinds by that of the first of its request
--             and by its place in the request, from 0 on
--       charge   B key, B row, B flags, I4 permits, and what the flags say: see charge.lua
-- Reply one integer for a lone call that is granted and has one number, but of a calendar, and for
--       one that only settles. Or an array: the time in us, if it is asked for, and for each
--       request, behind the number of its numbers, if these are asked for
--         nil                if a state is foreign
--         2 - MOST           if a row of a calendar has no window for now
--         of one that settles   the permits freed; below zero: charged
--         of several callers   how many are granted; a group with room, if any are; one without, if
--                            not all are
--         of a list, for each charge   a group
--         where it fetches ahead, behind the groups of the charge   1 if it has fetched, 0 if not
--         for each ban, behind all groups   ms until the ban in force ends, ms until the caller may
--                            come back, strikes that count
--       a group with room:   log, window, calendar: left * (interval + 1) + next, or two numbers if
--                            (rate + 1) * (interval + 1) is above MOST; by several limits for each
--                            in the order of the row;  GCRA: backlog (us), given
--       one without:         -wait, left, and of a log reset;  GCRA: -wait, backlog, given
--                            -MOST: it asks for more than the rate. 1 - MOST alone: a ban refuses.
--                            By several limits, behind these, for each in the order of the row:
--                            left, and ms until it has room, 0 if it has some, MOST if it never has
--
-- A state is one string. Its last two bytes say what it is: 16 * version + kind, and the magic
-- byte. Kinds: 1 log, 2 GCRA, 3 window, 4 ban, 5 calendar; see the fragments of these names. A
-- state that is foreign stays as it is.
--
-- Most requests are simple: charges of new callers, without bans. All others are gone through
-- twice, at first only to count. What few calls need is made where it is first needed, as making
-- functions costs more than most decisions.
--
-- In Lua 5.4, `/` and struct.unpack make floats. So what becomes text is formatted, and a reply is
-- made whole at the end.

local redis, struct, string, math = redis, struct, string, math
local call, try, arg, KEYS = redis.call, redis.pcall, ARGV[1], KEYS
local unpack_list, min, max = table.unpack or unpack, math.min, math.max
local floor, ceil = math.floor, math.ceil
local unpack, pack, byte, sub, format =
  struct.unpack, struct.pack, string.byte, string.sub, string.format
-- The greatest number of a reply, and the greatest in six bytes.
local MOST, LATEST = 9007199254740991, 281474976710655
-- The last four bytes of a log, as one number, without the counts.
local LOG = 17 * 65536 + 183 * 16777216

-- Most calls are lone ones of one limit: they are read at once.
local length, row_number, now, row_count, kind, limits, interval, rate, permits = #arg, 1, nil, 0, 1
if length == 34 then
  -- Of a log, its three bytes are 0, 1 and 1.
  now, limits, interval, rate, permits = unpack('<I6I3I6I7I4', arg, 9)
  limits = 1
elseif length == 33 then
  now, row_count, kind, interval, rate, permits = unpack('<I6BBI6I7I4', arg, 9)
else
  row_number, now, row_count, kind = 0, unpack('<I6BB', arg, 9)
end
local time = call('TIME')
local server = time[1] * 1000000 + time[2]
local server_ms = (server - server % 1000) / 1000
local by_server, micros = now == 0, now * 1000
if by_server then
  now = server_ms
  micros = server
end

local settles, is_absent = row_count == 255, false
local is_lone = settles or row_count == 0
local counts, begun, begun_at = false, 0, 0
local at, charges_at, callers, charges, key, number = length + 1, length, 1, 1, 1, 1
local flags, asks = 0, 0
local size, answer, reply, row, rows, ladder, tried, refused = 0
-- Of the row: see row.lua. Of the request: see charge.lua and resolve.lua.
local open_label, open_ends, open_interval, next_label, next_ends, next_interval
local of, of_place, is_sent_again, judged, wait, was, mark, mark_given
-- The state that is open: see state.lua.
local name, of_kind, page, from, is_late, fits, log, tail, lent
local of_label, of_ends, of_used, of_interval, of_rate, back, tat, emission, ids
-- What is written of it: a text from an offset on, or the whole, for a whole number of ms;
-- of a log, the records that are not written. Of a call that is not lone, by key.
local text, offset, life, logs, texts, offsets, lives
-- How it is written, and the numbers that were made text last.
local write, done, last_offset, offset_text, last_life, life_text = call, nil, 27, '27'
-- What is made when it is needed.
local walk, rest_of, rare, held, lents, leads, bans, heads, read_charge, meet, judge
if not is_lone then
  -- Some with room for a few, as a table that grows costs more.
  row_number, at, rows, logs, reply = 0, 17, { nil }, {}, { nil, nil, nil, nil }
  texts, offsets, lives = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local tells = byte(arg, 16)
  counts = tells > 1
  if tells % 2 == 1 then
    reply[1], size = micros, 1
  end
  for number = 1, row_count do
    local of, limits = byte(arg, at, at + 1)
    rows[number] = at
    at = at + (of == 1 and 2 + 13 * limits or of == 4 and 23 or of == 5 and 44 or 14)
  end
elseif settles then
  permits, was, mark, mark_given = unpack('<I4I4I7I7', arg, length - 21)
elseif row_number == 0 then
  permits = unpack('<I4', arg, length - 3)
end

repeat
  -- Whether permits are taken where there is room; to how many callers they are given in any case.
  local charge, takes, given, failure, is_again = 1, true, nil, nil, nil
  -- Of a request that is not simple: see charge.lua and resolve.lua.
  local pages, cursor, is_dry, may_take, has_room, is_found, is_banned, has_fetched
  local needs_rare, its_ban, ahead, lead, id_ahead, size_before, before, is_undone
  of_place = 0
  if is_lone then
    -- As its first eight bytes are the id, the argument can be packed for it.
    of = settles and sub(arg, 1, 8) or arg
  else
    if counts and begun_at ~= at then
      begun, begun_at, size = size + 1, at, size + 1
    end
    callers, charges, asks, of, key, number, flags, permits = unpack('<BBBc8BBBI4', arg, at)
    charges_at = at + 3 + 8 * callers
    settles = asks == 16 and callers > 0
    if settles then
      was, mark, mark_given = unpack('<I4I7I7', arg, charges_at + 7)
    elseif callers > 1 then
      key, number, flags, permits = unpack('<BBBI4', arg, charges_at)
    end
    if flags < 2 and (asks < 2 or settles) and callers > 0 and (charges == 1 or at ~= tried) then
      -- A list takes at once, too. If one of its charges has no room, that is undone, and all are
      -- asked; if one is not usual, all are gone through twice.
      if charges > 1 then
        size_before, takes = size, at ~= refused
      end
    else
      pages, cursor, is_dry, has_room, wait, judged = {}, charges_at, true, true, 0, {}
      is_sent_again = callers == 0
      if is_sent_again then
        of, of_place, charges, asks, cursor = unpack('<c8BBB', arg, at + 1)
        callers = 1
      end
      at = cursor
    end
  end

  repeat
    if pages and not is_again then
      --- @include charge.lua
    elseif charge > 1 and not pages then
      key, number, flags, permits = unpack('<BBBI4', arg, charges_at + 7 * charge - 7)
    end
    local granted, left, next, one, two, told, third, freed, pending, is_usual, each, said, whole = 0
    text, life, is_again = nil, nil, nil
    --- @include read.lua
    if settles and (is_lone and kind or byte(arg, rows[number])) == 1 then
      --- @include settle_usual.lua
    end
    if number ~= row_number and not is_usual then
      --- @include row.lua
    end
    if size_before and pending then
      before = before or {}
      before[charge] = { logs[key], pending, offsets[key], lives[key], held and held[key] }
    end
    if size_before and flags > 1 then
      failure = false
    elseif kind == 1 and not pending and not pages and not settles then
      if limits == 1 then
        --- @include usual.lua
      else
        --- @include usual_several.lua
      end
    end
    if is_lone and is_usual and (answer or said) then
      -- It ends here.
      reply = said
      if text then
        --- @include write.lua
      end
      --- @include answer.lua
    end
    if not is_usual and (failure == nil or pages) then
      --- @include state.lua
      if not fits or kind == 1 or kind == 5 or is_late or pages or settles then
        --- @include prepare.lua
      end
      if is_banned then
        told = 1 - MOST
      elseif failure ~= nil or freed then
        granted = 1
      elseif kind == 2 then
        --- @include gcra.lua
      elseif kind == 1 then
        --- @include log.lua
      else
        --- @include window.lua
      end
    end
    if text and texts then
      if offset > 0 and texts[key] and offset > offsets[key] then
        text, offset = sub(texts[key], 1, offset - offsets[key]) .. text, offsets[key]
      end
      texts[key], offsets[key] = text, offset
      if life then
        lives[key] = life
      end
      if log then
        logs[key] = kind == 1 and log
      end
    end

    if is_again then
      charge = charge - 1
    elseif is_dry then
      has_room = has_room and (granted > 0 or flags % 2 == 1)
      if charge == charges then
        --- @include resolve.lua
      end
    elseif size_before and (failure ~= nil or takes and granted == 0 and flags % 2 == 0) then
      for charge = charge - 1, 1, -1 do
        local key, it = byte(arg, charges_at + 7 * charge - 7), before and before[charge] or {}
        logs[key], texts[key], offsets[key], lives[key] = it[1], it[2], it[3], it[4]
        if held then
          held[key] = it[5]
        end
      end
      for place = size_before + 1, size do
        reply[place] = nil
      end
      size, charge, is_undone = size_before, charges, true
      refused, tried = at, failure ~= nil and at
    elseif failure ~= nil then
      reply = reply or {}
      reply[size + 1], size = failure, size + 1
    elseif settles and not is_lone then
      reply[size + 1], size, answer = answer, size + 1, nil
    elseif not answer then
      --- @include tell.lua
    end
    charge = charge + 1
  until charge > charges
  if pages then
    at = cursor
    if judged[1] and failure == nil then
      judge(asks > 1 or is_found or is_banned, has_room)
    end
  elseif not is_undone then
    at = charges_at + 7 * charges + (settles and 18 or 0)
  end
  if counts and not is_undone then
    reply[begun] = size - begun
  end
until at > length

log = kind == 1 and log
for key = 1, #KEYS do
  if texts then
    text = texts[key]
    log = logs[key]
    life = lives[key]
    offset = offsets[key]
  end
  if text and not (held and held[key]) then
    name = KEYS[key]
    if log then
      --- @include log_write.lua
    end
    -- Where no memory is left, a refusal stands and counts for no ban. A ban by hand fails.
    local is_ban = bans and bans[key] and not bans[key].by_hand
    write, done = is_ban and try or call, nil
    --- @include write.lua
    if is_ban and type(done) == 'table' and done.err and not string.find(done.err, 'OOM', 1, true)
    then
      error(done.err, 0)
    end
  end
end

--- @include answer.lua
