-- Decides the usual charge of a log at once, by the rules of log.lua, which describes the bytes:
-- one limit, nothing ahead, few records that expire, and room for all, or for none until the first
-- record expires. It leaves any other charge as it is. A fragment of decide.lua.

--- @include one_window.lua
local expired, time_of_grant, behind, oldest, held = now - interval, now, 40, nil, nil
is_usual = bytes == 0 or is_usual and its_interval == interval
if bytes == 0 or newest <= expired then
  -- Nothing lives.
  used, start, stop, ends = 0, 0, 0, 0
elseif is_usual then
  --- @include first.lua
end
if is_usual then
  local taken, room, records = callers * permits, rate - (used > 0 and used or 0), nil
  local final = stop + 22 * callers
  -- What has expired is cut at the end of a call: a later request may have been sent before.
  local cuts = texts and start > 0 and takes and ends < server_ms + interval
  if taken > 0 and taken <= room and final - start <= 44000 and final <= 88000 and not cuts then
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
