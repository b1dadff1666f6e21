-- Resolves what becomes of a request that is not simple, when all its charges are counted: then
-- they are gone through again, to take and to tell. A fragment of decide.lua.

if failure ~= nil then
  size = size + 1
  reply[size] = failure
else
  if judged and meet(judged, charges, of, asks < 2 and not is_found, is_sent_again) then
    is_banned = true
  end
  may_take = asks > 3 and asks < 8 or asks < 2 and has_room and not is_banned and not is_found
  is_dry, charge, cursor = false, 0, at
end
-- A resent request has the places of the first one, and one that takes nothing needs none.
if not is_sent_again and asks < 2 then
  place = place + callers + (fetches and 1 or 0)
end
