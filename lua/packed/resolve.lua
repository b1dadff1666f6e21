-- Resolves what becomes of a request that is not simple, when all its charges are counted: then
-- they are gone through again, to take and to tell. A fragment of request.lua.

if failure ~= nil then
  reply[size + 1], size = failure, size + 1
else
  is_banned = judged[1] and meet((asks < 2 or asks > 7) and not is_found)
  may_take = asks < 2 and has_room and not is_banned and not is_found
  is_dry, charge, cursor = false, 0, at
end
