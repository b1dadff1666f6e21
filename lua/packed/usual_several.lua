-- Decides the usual charge of a log by several limits at once, by the rules of log.lua, which
-- describes the bytes: nothing is ahead, few records expire, and each limit has room for all, or
-- one for none until its first record expires; and what takes need not write the log whole, or
-- nothing in it lives. It leaves any other charge as it is. A fragment of decide.lua,
-- simple.lua and request.lua.

local bytes, behind, form = #page, 30 * limits + 10, LOG + 256 * limits
local newest, stop, ends, w, its_row, wait_here = 0, 0, 0, bytes - 39, row + 13 * limits - 11, 0
local taken, of_form, of_interval, used, start, longest, longest_used, longest_start, _ =
  callers * permits
if bytes > behind + 21 then
  newest, longest, _, longest_used, longest_start = unpack('<I6I6I7I7I4', page, bytes - behind - 5)
  of_interval, _, used, start, _, ends, of_form = unpack('<I6I7I7I4I6I6I4', page, w)
  stop = (bytes < 260 and bytes or call('STRLEN', name)) - behind
end
is_usual = taken > 0 and (bytes == 0 or of_form == form and newest <= now and stop % 22 == 0)
local lives, less, limit, windows, refuses, begin, held =
  stop > 0 and newest > now - interval, takes and taken or 0, is_usual and limits or 0, ''
-- The shortest first, which refuses most.
said = { nil, nil, nil, nil }
while limit > 0 do
  local its_interval, its_rate = interval, rate
  if limit > 1 then
    its_interval, its_rate = unpack('<I6I7', arg, its_row)
  end
  local expired, unit, its_wait, oldest = now - its_interval, its_interval + 1, 0
  is_usual = (its_rate + 1) * unit <= MOST
    and (stop == 0 or of_interval == its_interval and start % 22 == 0 and start <= stop)
  if not lives then
    used = 0
    start = 0
  elseif is_usual then
    --- @include first.lua
  end
  local room = its_rate - used
  if room < permits then
    is_usual = is_usual and oldest and permits <= its_rate and permits <= room + held
    its_wait = is_usual and oldest - expired
  elseif room < taken then
    is_usual = false
  end
  if not is_usual then
    break
  elseif its_wait > 0 and not refuses then
    -- How each limit stands is said instead.
    local granting = said
    refuses, said = true, { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
    for shorter = limit + 1, limits do
      local unit = unpack('<I6', arg, row + 13 * shorter - 11) + 1
      said[2 * shorter + 2], said[2 * shorter + 3] =
        (granting[shorter] - granting[shorter] % unit) / unit + less, 0
    end
  end
  if refuses then
    wait_here = its_wait > wait_here and its_wait or wait_here
    said[2 * limit + 2], said[2 * limit + 3] = room, its_wait
  else
    begin = start
    windows = pack('<I6I7I7I4I6c0', its_interval, its_rate, used + taken, start, now, windows)
    said[limit] = (room - less) * unit + (oldest and oldest - expired or its_interval)
  end
  limit = limit - 1
  w = w - 30
  its_row = its_row - 13
  if limit == 1 then
    of_interval = longest
    used = longest_used
    start = longest_start
  elseif stop > 0 and limit > 1 then
    of_interval, _, used, start = unpack('<I6I7I7I4', page, w)
  end
end
if is_usual and refuses then
  left = said[4]
  for limit = 2, limits do
    left = said[2 * limit + 2] < left and said[2 * limit + 2] or left
  end
  said[1], said[2], said[3] = -wait_here, left, newest + interval - now
elseif is_usual and (not lives or ends >= server_ms + interval and stop <= 88000
  and stop - begin <= 44000) then
  granted = callers
  if takes then
    if not lives then
      stop, ends = 0, server_ms + 2 * interval
      ends = ends < LATEST and ends or LATEST
      life = ends - server_ms
    end
    offset = stop
    if callers > 1 then
      local time_of_grant, trailer = now, windows .. pack('<I6I4', ends, form)
      --- @include records.lua
    else
      text = pack('<c8I8I6c0I6I4', of, permits * 65536 + 256, now, windows, ends, form)
    end
  end
else
  is_usual, said = false, nil
end
