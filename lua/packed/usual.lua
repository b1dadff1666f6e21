-- Decides the usual charge of a log at once, by the rules of log.lua, which describes the bytes:
-- one limit, nothing ahead, few records that expire, and room for all, or for none until the first
-- record expires. It leaves any other charge as it is. No record is later than now, as the last is
-- not, so that one more permit is free within the interval. A fragment of decide.lua.

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
    if (rate + 1) * (interval + 1) <= MOST then
      one, next = left * (interval + 1) + next, nil
      answer = is_lone and one
    end
    if takes then
      offset = stop
      if ends < server_ms + interval then
        ends = server_ms + 2 * interval
        ends = ends < LATEST and ends or LATEST
        records = oldest and call('GETRANGE', name, format('%d', start), format('%d', stop - 1))
        life, offset, start = ends - server_ms, 0, 0
      end
      if callers > 1 then
        local trailer = pack('<I6I7I7I4I6I6I4', interval, rate, rate - left, start, now, ends,
          LOG + 256)
        --- @include records.lua
      else
        -- A record's place, its one caller and its permits are one number.
        text = pack('<c8I8I6I6I7I7I4I6I6I4', of, taken * 65536 + 256, now, interval, rate,
          rate - left, start, now, ends, LOG + 256)
      end
      if records then
        text = records .. text
      end
    end
  elseif oldest and room < permits and permits <= rate and permits <= room + held then
    told, left, third = expired - oldest, room, newest - expired
    said = is_lone and { told, left, third }
  else
    is_usual = false
  end
end
