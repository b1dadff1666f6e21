-- Settles the usual grant of a log at once, by the rules of settle.lua: by one limit, nothing is
-- ahead, and the grant is one record, or is not found and so gives nothing back. It leaves any
-- other as it is; also where more is charged, unless the whole log is read, as a debt may stand in
-- it. A fragment of request.lua.

if pending then
  -- What the settlements before it write begins with the earliest record that they change.
  page, whole = '', 0
  if not logs[key] then
    page, whole = pending, offsets[key] + #pending
  end
end
--- @include one_window.lua
whole = nil
if is_usual and mark < MOST and its_interval > 0 and ends >= server_ms + its_interval
  and stop - start < 44000 and stop < 88000 then
  -- Where all is given back, what no longer lives makes no difference.
  local base, from = permits == 0 and start or 0, stop - bytes + 40
  local at, first, callers, has = string.find(page, of, 1, true), 0, 1, was
  if not at and base < from then
    page = pending and call('GETRANGE', name, format('%d', base), format('%d', from - 1)) .. page
      or call('GETRANGE', name, format('%d', base), '-1')
    from = base
    at = string.find(page, of, 1, true)
  end
  has, is_usual = has < permits and has or permits, not at
  if at and at < #page - 60 then
    first, callers, has = unpack('<BBI6', page, at + 8)
    is_usual = first == 0 and callers == 1 and from + at > base and (from + at) % 22 == 1
      and not string.find(page, of, at + 1, true) and (has >= permits or from == 0)
  end
  if is_usual then
    answer, log = has - permits, nil
    if answer > 0 then
      if from + at > start then
        used = used > answer and used - answer or 0
      end
      -- The whole record, though only its permits change: so every write begins with one.
      if pending then
        offset = from
        text = sub(page, 1, at + 9) .. pack('<I6', permits) .. sub(page, at + 16, -28)
          .. pack('<I7', used) .. sub(page, -20)
      else
        offset = from + at - 1
        text = pack('<c8I8c0I7c0', of, permits * 65536 + 256, sub(page, at + 16, -28), used,
          sub(page, -20))
      end
    elseif answer < 0 then
      used, offset = min(used - answer, MOST), stop
      text = pack('<c8BBI6I6c0I7c0', of, 0, 255, -answer, now, sub(page, -40, -28), used,
        sub(page, -20))
    end
  end
else
  is_usual = false
end
