-- Merges records of a log that has too many, the oldest first. A fragment of log_write.lua.
--
-- Neighbours that live by the same shortest interval are merged if they lie within a thousandth of
-- it, at the time of the last: so a merged record, a slot, expires late by as much at most. It has
-- no id, and 0 callers.

-- The open group: where it begins, the times of its first and its last record, how far they may
-- lie apart, and its permits.
local parts, begin, first, newest, width, sum = {}, 1, nil, 0, nil, 0

-- Ends the open group before a place of the text.
local function close(behind)
  parts[#parts + 1] = behind - begin == 22 and sub(text, begin, behind - 1)
    or string.rep('\0', 10) .. pack('<I6I6', sum, newest)
end

for at = 1, #text, 22 do
  local permits, time = unpack('<I6I6', text, at + 10)
  -- What no longer lives is dropped.
  if time > now - log[2] then
    local w = last - 6
    while time <= now - log[w] do
      w = w - 5
    end
    local its_width = ceil(log[w] / 1000)
    if its_width ~= width or time >= first + width or sum + permits > LATEST then
      if first then
        close(at)
      end
      begin, first, width, sum = at, time, its_width, 0
    end
    newest, sum = time, sum + permits
  end
end
close(#text + 1)
text = table.concat(parts)
for w = 2, last - 6, 5 do
  log[w + 3] = walk(name, 22, text, '', MOST, #text, 0, now - log[w], MOST)
  log[w + 2] = min(select(3, walk(name, 22, text, '', MOST, #text, log[w + 3], LATEST, MOST)), MOST)
end
