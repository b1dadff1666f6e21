-- Decides a charge by a fixed window, which opens with its first grant, or by the window of a
-- calendar, which the call names. A fragment of request.lua.
--
--   I6 label    of a calendar's window, greater for later ones; of another, its end
--   I6 ends, ms   I7 used   I6 interval, ms   I7 rate
--   c8 id, B place, B callers of the last four grants, newest first; B kind, B magic
--
-- In memory: `of_label`, `of_ends`, `of_used`, `of_interval`, and the ids.
-- The key of a calendar outlives its window by an hour, so that hosts whose time zone data differ
-- still find it.

local label, ends, its_interval, used = open_label, open_ends, open_interval, 0
-- The grants of a window that is over cannot be sent again.
if not fits or (kind == 3 and now >= of_ends or kind == 5 and of_label < label) then
  ids = nil
end
if kind == 3 then
  ends, its_interval = min(now + interval, LATEST), interval
  if fits and now < of_ends then
    -- A longer window stays, a shorter one grows.
    ends, used = of_ends, of_used
    if of_interval < interval then
      ends = min(ends - of_interval + interval, LATEST)
    else
      its_interval = of_interval
    end
  end
  label = ends
elseif fits and of_label >= label then
  -- Labels never fall. A window that the call does not know stays until its own end.
  if of_label == next_label then
    used, ends, its_interval = of_used, next_ends, next_interval
  elseif of_label == label then
    used = of_used
  elseif now < of_ends then
    used, ends = of_used, of_ends
  end
  label = of_label
end
-- What another kind has in use would count until a calendar's window ends.
if not fits and of_kind > 0 and kind == 3 then
  used = min(rare.use(), rate)
end
left = rate - used
granted = given or callers * permits <= left and callers or left < permits and 0
  or floor(left / permits)
if takes and granted > 0 then
  used, offset = min(used + granted * permits, MOST), 12
  left = rate - used
  text = pack('<I7I6I7c8Hc30H', used, its_interval, rate, of, of_place + 256 * granted,
    ids or string.rep('\0', 30), 16 + kind + 256 * 183)
  if not fits or of_label ~= label or of_ends ~= ends or lives and lives[key] then
    life, offset = ends - now + (kind == 5 and 3600000 or 0), 0
    text = pack('<I6I6', label, ends) .. text
  end
end
next = ends - now
if granted < callers then
  told = permits > rate and -MOST or now - ends
end
