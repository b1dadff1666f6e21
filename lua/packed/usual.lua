-- Decides the usual charge of a log at once, by the rules of log.lua, which describes the bytes:
-- one limit, nothing ahead, few records that expire, and room for all. It leaves any other charge
-- as it is. A fragment of decide.lua.

local expired, its_interval, its_rate, used, start, seen, ends, form = now - interval
local bytes, part, newest, oldest, held, stop, from = #page, page, 0, nil, nil, 0, nil
local is_usual = bytes == 0
if bytes > 61 then
  newest, its_interval, its_rate, used, start, seen, ends, form =
    unpack('<I6I6I7I7I4I6I6I4', page, bytes - 45)
  if form == LOG + 256 and its_interval == interval and newest <= now then
    stop = (bytes < 260 and bytes or call('STRLEN', name)) - 40
    is_usual = stop % 22 == 0 and start % 22 == 0 and start <= stop
  end
end
if newest <= expired then
  -- Nothing lives.
  used, start, stop, ends = 0, 0, 0, 0
elseif is_usual then
  from = stop - bytes + 40
  if start < from then
    part, from = call('GETRANGE', name, format('%d', start), format('%d', start + 219)), start
  end
  repeat
    held, oldest = unpack('<I6I6', part, start - from + 11)
    is_usual = oldest > expired
    if not is_usual then
      used, start = used - held, start + 22
    end
  until is_usual or start + 22 > from + #part
  used = used > 0 and used or 0
end
local taken = callers * permits
if is_usual and taken > 0 and used + taken <= rate and stop - start < 43979 then
  granted, log = callers, nil
  offset, left, next = stop, rate - used - taken, oldest and oldest - expired or interval
  local records = ''
  if ends < server_ms + interval then
    ends = min(server_ms + 2 * interval, LATEST)
    records = oldest and call('GETRANGE', name, format('%d', start), format('%d', stop - 1)) or ''
    life, offset, start = ends - server_ms, 0, 0
  end
  text = pack('<c8BBI6I6I6I7I7I4I6I6I4', of, of_place, callers, taken, now, interval, rate,
    used + taken, start, now, ends, LOG + 256)
  text = life and records .. text or text
end
