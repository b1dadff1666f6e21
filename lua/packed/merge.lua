-- Merges records of a log that has too many, except the newest, whose callers may settle them. A
-- fragment of log_write.lua.
--
-- Time is divided in parts of a thousandth of an interval. Those that live by the same shortest
-- interval and lie in one part of it are merged, at the time of the last: so a merged record, a
-- slot, expires late by as much at most, also if it is merged again. It has no id, and 0 callers.
-- Those that were given back whole are dropped; if that leaves no more than 1000, all stay single,
-- as each may be given back yet.

-- The open group: where its only record is, the part of time, the time of its last record, how long
-- parts are, how many records there are, and their permits.
local parts, begin, part, newest, width, number, sum = {}, 1, nil, 0, nil, 0, 0
local kept = max(#text - 22 * 500, 0)

-- How long parts are, by the window: none of a shorter interval lies in two of a longer one.
local widths = {}
for w = last - 6, 2, -5 do
  local its_width = ceil(log[w] / 1000)
  widths[w] = width and its_width - its_width % width or its_width
  width = widths[w]
end

local living = 0
for at = 1, kept, 22 do
  local permits, time = unpack('<I6I6', text, at + 10)
  living = living + (permits > 0 and time > now - log[2] and 1 or 0)
end

local function close()
  if number > 0 then
    parts[#parts + 1] = number == 1 and sub(text, begin, begin + 21)
      or string.rep('\0', 10) .. pack('<I6I6', sum, newest)
  end
end

for at = 1, kept, 22 do
  local permits, time = unpack('<I6I6', text, at + 10)
  -- What no longer lives is dropped.
  if permits > 0 and time > now - log[2] then
    local w = last - 6
    while time <= now - log[w] do
      w = w - 5
    end
    local its_width = widths[w]
    local its_part = living > 1000 and floor(time / its_width) or at
    if its_width ~= width or its_part ~= part or sum + permits > LATEST then
      close()
      begin, part, width, number, sum = at, its_part, its_width, 0, 0
    end
    newest, number, sum = time, number + 1, sum + permits
  end
end
close()
text = table.concat(parts) .. sub(text, kept + 1)
for w = 2, last - 6, 5 do
  log[w + 3] = walk(name, 22, text, '', MOST, #text, 0, now - log[w], MOST)
  log[w + 2] = min(select(3, walk(name, 22, text, '', MOST, #text, log[w + 3], LATEST, MOST)), MOST)
end
