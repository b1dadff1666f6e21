-- Makes `text`, the records of callers granted together. A fragment of usual.lua and log.lua.

local behind = string.gsub(pack('<BBI6I6', 0, 1, permits, time_of_grant), '%%', '%%%%')
text = string.gsub((place > 0 and '' or sub(arg, 1, 8))
  .. sub(arg, ids_at + 8 * max(place, 1), ids_at + 8 * (place + granted) - 1), '........',
  '%0' .. behind)
