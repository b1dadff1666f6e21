-- Finds the first record that lives by a limit: its time is `oldest`, its permits are `held`. It
-- looks from `start` on, which it moves, and takes what no longer lives from `used`; it leaves a
-- log in which much has expired. What stands behind the records has `behind` bytes. A fragment of
-- usual.lua and usual_several.lua.

local part, from, reach = page, stop + behind - bytes, stop
if start < from then
  part, from = call('GETRANGE', name, format('%d', start), format('%d', start + 109)), start
  reach = stop < start + 110 and stop or start + 110
end
while start < reach do
  held, oldest = unpack('<I6I6', part, start - from + 11)
  if oldest > expired and held > 0 then
    break
  end
  used, start, oldest = used - held, start + 22, nil
end
-- All may have been given back.
is_usual = oldest or start == stop
used = used > 0 and used or 0
