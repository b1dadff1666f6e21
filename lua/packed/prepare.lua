-- Prepares a charge that is not of the usual: makes what it needs, finds failures, and does what
-- comes before the decision. A fragment of decide.lua.

ladder = ladder or { interval, rate }
local is_rare = is_late or lent or needs_rare or not fits and of_kind ~= 0
if not walk and (is_rare or pages) then
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
    rare.set_back()
  end
end
if pages and of_kind then
  if is_dry then
    is_found = is_found or is_sent_again and asks < 2 and rare.find()
  elseif asks > 3 and asks < 8 then
    if not settle then
      --- @include settle.lua
    end
    freed = settle(permits, was, mark, mark_given)
    permits, given = permits - was, 1
  end
end
