-- Finds the caller: `grants` are all that the state has of grants, and `places` where those of the
-- caller are. In a log some may be of 255 callers: see settle.lua. A fragment of prepare.lua.

local width, at = of_kind == 1 and 22 or 10, nil
places = {}
if of_kind == 1 then
  -- A short log is read already.
  grants = from == 0 and tail == '' and sub(page, 1, log[#log])
    or rest_of(name, tail, log[#log], 0)
  grants = grants .. (lent or '')
else
  grants = sub(page, -42, -3)
end
at = string.find(grants, of, 1, true)
while at do
  local first, callers = byte(grants, at + 8, at + 9)
  if at % width == 1 and first <= of_place
    and of_place < first + (callers < 255 and callers or 1) then
    places[#places + 1] = at
  end
  at = string.find(grants, of, at + 1, true)
end
