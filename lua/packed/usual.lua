-- Decides the usual charge of a log at once, by the rules of log.lua, which describes the bytes:
-- one limit, nothing ahead, few records that expire, and room for all, or for none until the first
-- record expires. It leaves any other charge as it is. A fragment of decide.lua.

--- @include one_window.lua
local expired, part, time_of_grant, oldest, held, from = now - interval, page, now, nil, nil, nil
is_usual = bytes == 0 or is_usual and its_interval == interval
if bytes == 0 or newest <= expired then
  -- Nothing lives.
  used, start, stop, ends = 0, 0, 0, 0
elseif is_usual then
  local reach = stop
  from = stop - bytes + 40
  if start < from then
    part, from = call('GETRANGE', name, format('%d', start), format('%d', start + 109)), start
    reach = min(stop, start + 110)
  end
  while start < reach do
    held, oldest = unpack('<I6I6', part, start - from + 11)
    if oldest > expired and held > 0 then
      break
    end
    used, start, oldest = used - held, start + 22, nil
  end
  -- All may have been given back.
  is_usual = oldest or start == stop
end
if is_usual then
  local taken, room, records = callers * permits, rate - (used > 0 and used or 0), nil
  local behind = stop + 22 * callers
  -- What has expired is cut at the end of a call: a later request may have been sent before.
  local cuts = texts and start > 0 and takes and ends < server_ms + interval
  if taken > 0 and taken <= room and behind - start <= 44000 and behind <= 88000 and not cuts then
    log = nil
    granted = callers
    left = takes and room - taken or room
    next = oldest and oldest - expired or interval
    offset = stop
    if takes and ends < server_ms + interval then
      ends = min(server_ms + 2 * interval, LATEST)
      records = oldest and call('GETRANGE', name, format('%d', start), format('%d', stop - 1)) or ''
      life, offset, start = ends - server_ms, 0, 0
    end
    if takes and callers > 1 then
      --- @include records.lua
      text = text .. pack('<I6I7I7I4I6I6I4', interval, rate, rate - left, start, now, ends,
        LOG + 256)
    elseif takes then
      text = pack('<c8BBI6I6I6I7I7I4I6I6I4', of, 0, 1, taken, now, interval, rate, rate - left,
        start, now, ends, LOG + 256)
    end
    text = life and records .. text or text
  elseif oldest and room < permits and permits <= rate and permits <= room + held then
    told, left, third = expired - oldest, room, newest - expired
  else
    is_usual = false
  end
end
