-- The verbs of a calendar.
--
-- KEYS  1  see state.lua; for rename also 2 and 3, the two of ban/acquire.lua, and then these three
--       under the new name
-- ARGV  1  the verb, and then its arguments:
--       release   permits
--       rename    none
--       settle    label, credited: permits of that label to give back; below zero, to charge
--       used      none
-- Reply release   1, permits released: fewer if fewer are used
--       rename    1, or 0 if there is no such limiter
--       settle    1, permits credited, below zero if charged; 0 if the label is over
--       used      1, permits used in the present window
--       negative: an error, alone in the reply
--
-- No verb needs to know the windows: a key that exists belongs to the present window, unless it is
-- in the hour for which it outlives its window. Redisson has no such operations.
--
--- @include lib/state.lua
--- @include calendar/state.lua
--- @include lib/verbs.lua

-- Gives back up to `permits` of those used under the stored label; charges them if below zero.
-- Returns the change.
local function credit(label, used, permits)
  local credited = math.min(permits, used)
  if credited ~= 0 then
    store_use(label, used - credited)
  end
  return { 1, credited }
end

-- Counts the permits used in the present window.
function verbs.used()
  local label, used = stored_use()
  if not used then
    return { UNREADABLE }
  end
  return { 1, label and life_of_stored() > 0 and used or 0 }
end

-- Releases permits of the present window. Not safe to send twice.
function verbs.release(permits)
  local label, used = stored_use()
  if not used then
    return { UNREADABLE }
  elseif not label or life_of_stored() <= 0 then
    return { 1, 0 }
  end
  return credit(label, used, tonumber(permits))
end

-- Settles what one acquire took, if its window is still the stored one. Not safe to send twice:
-- whether it was settled before is not stored.
function verbs.settle(label, credited)
  local stored, used = stored_use()
  if not used then
    return { UNREADABLE }
  elseif stored ~= tonumber(label) then
    return { 1, 0 }
  end
  return credit(stored, used, tonumber(credited))
end

return verbs[ARGV[1]](unpack(ARGV, 2))
