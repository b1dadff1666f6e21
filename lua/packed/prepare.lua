-- Prepares a charge that is not of the usual: makes what it needs, finds failures, and does what
-- comes before the decision. A fragment of request.lua.

local is_moved = false
-- To settle, a log may need a record more, or lose a window.
local is_rare = is_late or lent or needs_rare or not fits and of_kind ~= 0
  or settles and of_kind == 1
if not walk and (kind == 1 or is_rare or bans or settles or is_sent_again) then
  --- @include walk.lua
end
if not of_kind or size_before and is_rare then
  failure = false
elseif kind == 5 and not open_label and failure == nil then
  failure = 2 - MOST
end
if is_rare and not size_before then
  if not rare then
    --- @include rare.lua
  end
  if is_late then
    is_moved = rare.set_back()
  end
end
local grants, places
if settles and kind == 1 and of_kind == 1 or of_kind and is_dry and is_sent_again and asks < 2 then
  --- @include find.lua
  for number = 1, is_dry and #places or 0 do
    -- Not in a window that is over.
    is_found = is_found or byte(grants, places[number] + 9) < 255 and (of_kind < 3 or now < of_ends)
  end
end
if settles and of_kind and failure == nil then
  --- @include settle.lua
  permits, given = permits - was, 1
  answer = freed or -permits
  if held then
    -- What was set back stays so.
    held[key] = nil
  end
end
if is_moved then
  -- Of GCRA, tat was moved.
  local whole = ceil(of_interval * 1000 / of_rate) * of_rate
  local backlog = tat - micros
  if server + backlog > of_ends or lives[key] or is_late then
    of_ends = min(server + backlog + whole, MOST)
    lives[key] = floor((of_ends - server) / 1000) + 2
  end
  tat = min(tat, MOST)
  page = sub(page, 1, 13) .. pack('<I7I7I7', of_ends, back, tat) .. sub(page, 35)
  texts[key], offsets[key] = page, 0
end
