-- Decides the usual charge of a log at once, by the rules of log.lua, which describes the bytes:
-- one limit, nothing ahead, few records that expire, and room for all, or for none until the first
-- record expires. It leaves any other charge as it is. No record is later than now, as the last is
-- not, so that one more permit is free within the interval. A fragment of decide.lua,
-- simple.lua and request.lua.

--- @include one_window.lua
local expired, behind, oldest, held = now - interval, 40
if bytes > 0 and newest > expired then
  is_usual = is_usual and its_interval == interval
  if is_usual then
    --- @include first.lua
  end
else
  -- Nothing lives.
  is_usual = bytes == 0 or is_usual and its_interval == interval
  used = 0
  stop = 0
  ends = 0
end
if new_row == row and is_usual and stop == 0 and new_permits == permits and callers == 1 and takes
then
  -- Of many keys in which nothing lives, only the id differs.
  granted = 1
  one = new_one
  life = new_life
  offset = 0
  text = of .. new
elseif is_usual then
  local taken, room, records = callers * permits, rate - used
  -- A long log is cut or merged. What has expired is cut at the end of a call of several: a later
  -- request may have been sent before.
  if taken > 0 and taken <= room and (stop == 0
    or stop <= 82000 and stop + 22 * callers - start <= 44000
    and not (start > 0 and texts and takes and ends < server_ms + interval)) then
    local unit = interval + 1
    local free = oldest and oldest - expired or interval
    granted = callers
    left = takes and room - taken or room
    if (rate + 1) * unit <= MOST then
      one = left * unit + free
    else
      next = free
    end
    if takes then
      offset = stop
      if ends < server_ms + interval then
        ends = server_ms + 2 * interval
        ends = ends < LATEST and ends or LATEST
        records = oldest and call('GETRANGE', name, format('%d', start), format('%d', stop - 1))
        life = ends - server_ms
        offset = 0
        start = 0
      end
      if callers > 1 then
        local time_of_grant, trailer = now,
          pack('<I6I7I7I4I6I6I4', interval, rate, rate - left, start, now, ends, LOG + 256)
        --- @include records.lua
      elseif texts and stop == 0 then
        new_row, new_permits, new_one, new_life = one and row, permits, one, life
        new = pack('<I8I6I6I7I7I4I6I6I4', permits * 65536 + 256, now, interval, rate, permits, 0,
          now, ends, LOG + 256)
        text = of .. new
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
    told = expired - oldest
    left = room
    third = newest - expired
  else
    is_usual = false
  end
end
