-- Settles the usual grant of a log at once, by the rules of settle.lua: by one limit, nothing ahead,
-- a record, and no debt, which may stand before it. It leaves any other as it is. A fragment of
-- decide.lua.

local bytes, newest, its_interval, used, start, ends, form = #page, 0
if bytes > 61 then
  newest, its_interval, used, start, ends, form =
    unpack('<I6I6xxxxxxxI7I4xxxxxxI6I4', page, bytes - 45)
end
if form == LOG + 256 and newest <= now and its_interval > 0
  and ends >= server_ms + its_interval then
  local stop = (bytes < 260 and bytes or call('STRLEN', name)) - 40
  -- Where all is given back, what no longer lives makes no difference.
  local base, part, from = permits == 0 and start or 0, page, stop - bytes + 40
  local at, first, callers, has = string.find(part, of, 1, true), nil, nil, nil
  if not at and base < from then
    part, from = call('GETRANGE', name, format('%d', base), '-1'), base
    at = string.find(part, of, 1, true)
  end
  if at and at < #part - 60 then
    first, callers, has = unpack('<BBI6', part, at + 8)
  end
  if first == 0 and callers == 1 and mark < MOST and from + at > base
    and (from + at) % 22 == 1 and not string.find(part, of, at + 1, true)
    and stop % 22 == 0 and start % 22 == 0 and start <= stop
    and stop - start < 44000 and stop < 88000 and (has >= permits or from == 0) then
    is_usual, answer, log = true, has - permits, nil
    if answer > 0 then
      used = from + at > start and max(used - answer, 0) or used
      text = pack('<c8BBI6', of, 0, 1, permits) .. sub(part, at + 16, -28) .. pack('<I7', used)
        .. sub(part, -20)
      offset = from + at - 1
    elseif answer < 0 then
      used, offset = min(used - answer, MOST), stop
      text = pack('<c8BBI6I6', of, 0, 255, -answer, now) .. sub(part, -40, -28) .. pack('<I7', used)
        .. sub(part, -20)
    end
  end
end
