-- Decides the usual lone charge of a log by several limits at once, by the rules of log.lua, which
-- describes the bytes: each limit has room, nothing is ahead, and the log need not be written
-- whole, or nothing in it lives. It leaves any other charge as it is. A fragment of decide.lua.

local bytes, behind, form, ends, newest, stop = #page, 30 * limits + 10, LOG + 256 * limits, 0, 0, 0
is_usual = bytes == 0
if bytes > behind + 21 then
  local its_form
  ends, its_form = unpack('<I6I4', page, bytes - 9)
  newest = unpack('<I6', page, bytes - behind - 5)
  stop = (bytes < 260 and bytes or call('STRLEN', name)) - behind
  is_usual = its_form == form and newest <= now and stop % 22 == 0
end
local lives, from = newest > now - interval, stop + behind - bytes
local its_row, w = 13 * limits + 5, bytes - 39
is_usual = is_usual and permits > 0
  and not (lives and (ends < server_ms + interval or stop > 88000))
local limit, said, windows, read_at, held, time = limits, { nil, nil, nil, nil }, '', nil, nil, nil
-- The shortest first, which refuses most.
while is_usual and limit > 0 do
  local its_interval, its_rate = unpack('<I6I7', arg, its_row)
  local expired, used, oldest = now - its_interval, 0, nil
  local start, of_interval = 0, its_interval
  if stop > 0 then
    of_interval, used, start = unpack('<I6xxxxxxxI7I4', page, w)
    is_usual = of_interval == its_interval and start % 22 == 0 and start <= stop
  end
  if not lives then
    used, start = 0, 0
  elseif start < from then
    is_usual = false
  end
  while is_usual and lives and start < stop do
    if start ~= read_at then
      held, time = unpack('<I6I6', page, start - from + 11)
      read_at = start
    end
    if time > expired and held > 0 then
      oldest = time
      break
    end
    used, start = used - held, start + 22
  end
  local left = its_rate - permits - (used > 0 and used or 0)
  is_usual = is_usual and left >= 0 and (its_rate + 1) * (its_interval + 1) <= MOST
  if is_usual then
    windows = pack('<I6I7I7I4I6', its_interval, its_rate, its_rate - left, start, now) .. windows
    said[limit] = left * (its_interval + 1) + min((oldest or now) - expired, its_interval)
    limit, its_row, w = limit - 1, its_row - 13, w - 30
  end
end
if is_usual then
  if not lives then
    stop, ends = 0, min(server_ms + 2 * interval, LATEST)
    life = ends - server_ms
  end
  text = pack('<c8BBI6I6', of, 0, 1, permits, now) .. windows .. pack('<I6I4', ends, form)
  log, offset, reply, size = nil, stop, said, limits
end
