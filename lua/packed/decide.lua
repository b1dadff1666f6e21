-- Decides requests for permits of limiters. A request is a list of charges, and takes permits of
-- all or none. Requests are decided in order: each sees what those before it took. Each state is
-- written once: after all decisions, or, of a usual request of one charge, right behind its
-- decision, if the call says that it names no key twice.
--
-- KEYS  the states of limiters, {N}~ or {N}~:calendar, and of bans, {N}~:ban or {N}:ban~, in any
--       order; {N}:ban~~ for the state of a limiter of which only the ban is asked for
-- ARGV  1, packed, little-endian:
--       a lone call, of one caller of key 1 by row 1, of a log:
--         c8 id, I6 now, B 0, the row, I4 permits
--       one that only settles what the caller took of key 1, by any row: see settle.lua
--         c8 id, I6 now, B 255, the row, I4 permits, I4 permits that it took, I7 mark, I7 given
--       any other:
--         8 bytes of any value, I6 now, B rows, B flags (1: tell the time; 2: tell how many numbers
--         each request has; 4: no key is named twice), the rows, the requests
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
-- Reply one integer for a lone call that is granted and has one number, and for one that only
--       settles. Or an array: the time in us, if it is asked for, and for each
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
-- An instruction of Lua costs some 46 of the processor, and a function that is called or made more
-- than ten times as many. So the usual calls and requests are decided with as few as possible, and
-- leave all others to request.lua; and what few calls need is made where it is first needed.
--
-- In Lua 5.4, `/` and struct.unpack make floats. So what becomes text is formatted, and a reply is
-- made whole at the end.

local redis, struct, string = redis, struct, string
local call, try, arg, KEYS = redis.call, redis.pcall, ARGV[1], KEYS
local unpack_list = table.unpack or unpack
local unpack, pack, format = struct.unpack, struct.pack, string.format
-- The greatest number of a reply, and the greatest in six bytes.
local MOST, LATEST = 9007199254740991, 281474976710655
-- The last four bytes of a log, as one number, without the counts.
local LOG = 17 * 65536 + 183 * 16777216

-- Of a lone call, its row and its permits; of one that only settles, its row, which row.lua reads
-- again; of any other, `kind` is the flags.
local length = #arg
local now, row_count, kind, limits, interval, rate, permits = unpack('<I6BBBI6I7I4', arg, 9)
local time = call('TIME')
local server = time[1] * 1000000 + time[2]
local server_ms = (server - server % 1000) / 1000
local by_server = now == 0
if by_server then
  now = server_ms
end

-- Of the request: how many callers, whether permits are taken where there is room, and a text that
-- begins with the id of the first. How states are written; and of the row and the key: see row.lua,
-- read.lua and state.lua.
local callers, takes, of, write, row = 1, true, arg, call, 16
local name, page, is_absent, log, whole
-- What is written of it: a text from an offset on, or the whole, for a whole number of ms;
-- of a log, the records that are not written. Of a call that is not lone, by key.
local text, offset, life, logs, texts, offsets, lives
-- The numbers that were made text last.
local last_offset, offset_text, last_life, life_text, done
-- What is behind the id in a log that begins, its life and the answer, by row and permits, as they
-- were made last.
local new, new_row, new_permits, new_one, new_life
local reply, answer

if row_count == 0 and kind == 1 then
  -- Most calls are lone ones of a log: the usual ones end here.
  local is_usual, said, one, told, third, granted, left, next
  if limits > 1 then
    permits = unpack('<I4', arg, length - 3)
  end
  name = KEYS[1]
  --- @include read.lua
  if limits == 1 then
    --- @include usual.lua
  else
    --- @include usual_several.lua
  end
  if one or told or said then
    answer, reply = one, told and { told, left, third } or said
    if text then
      --- @include write.lua
    end
    --- @include answer.lua
  end
end

local settles = row_count == 255
local is_lone = settles or row_count == 0
local charges, key, number, flags, asks
local row_number, size, micros = 0, 0, by_server and server or now * 1000
-- Where the request that is decided begins, where its charges do, and where the next one does.
local at, charges_at, next_at
local counts, is_once, begun, rows, ladder, tried, refused
-- Of the row: see row.lua. Of the request: see charge.lua and resolve.lua.
local open_label, open_ends, open_interval, next_label, next_ends, next_interval
local of_place, is_sent_again, judged, wait, was, mark, mark_given
-- Of the state: see state.lua.
local of_kind, from, is_late, fits, tail, lent
local of_label, of_ends, of_used, of_interval, of_rate, back, tat, emission, ids
local math = math
local byte, sub = string.byte, string.sub
local min, max, floor, ceil = math.min, math.max, math.floor, math.ceil
-- What is made when it is needed.
local walk, rest_of, rare, held, lents, leads, bans, heads, read_charge, meet, judge
if not is_lone then
  -- A table that grows costs more than one that has room: the first four have it for a list, and
  -- the reply, which ends with its first nil, for three numbers of each key. Other servers, with
  -- another Lua, may go by its length.
  texts, offsets, lives = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
  reply = math.type and {} or { byte(arg, 1, 3 * #KEYS + 1) }
  rows = { nil }
  logs = {}
  at = 17
  counts, is_once = kind % 4 > 1, kind > 3
  if kind % 2 == 1 then
    reply[1], size = micros, 1
  end
  for number = 1, row_count do
    local of, limits = byte(arg, at, at + 1)
    rows[number] = at
    at = at + (of == 1 and 2 + 13 * limits or of == 4 and 23 or of == 5 and 44 or 14)
  end
else
  charges, key, number, flags, asks = 1, 1, 1, 0, 0
  if settles then
    of, permits, was, mark, mark_given = sub(arg, 1, 8), unpack('<I4I4I7I7', arg, length - 21)
  else
    row_number = 1
  end
end

repeat
  local is_decided
  if is_once and at ~= refused then
    --- @include simple.lua
  end
  if not is_decided then
    --- @include request.lua
  end
until is_lone or at > length

log = kind == 1 and log
for key = 1, #KEYS do
  if texts then
    text = texts[key]
  end
  if text and not (held and held[key]) then
    name = KEYS[key]
    if texts then
      log = logs[key]
      life = lives[key]
      offset = offsets[key]
    end
    if log then
      --- @include log_write.lua
    end
    -- Where no memory is left, a refusal stands and counts for no ban. A ban by hand fails.
    local is_ban = bans and bans[key] and not bans[key].by_hand
    if bans then
      write, done = is_ban and try or call, nil
    end
    --- @include write.lua
    if is_ban and type(done) == 'table' and done.err and not string.find(done.err, 'OOM', 1, true)
    then
      error(done.err, 0)
    end
  end
end

if not is_lone then
  for place = size + 1, math.type and #reply or size + 1 do
    reply[place] = nil
  end
end
--- @include answer.lua
