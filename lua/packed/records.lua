-- Makes `text`, the records of callers granted together, with `trailer` behind them. A fragment of
-- usual.lua, usual_several.lua and log.lua.

local behind = string.gsub(pack('<BBI6I6', 0, 1, permits, time_of_grant), '%%', '%%%%')
local ids_at = charges_at - 8 * callers
text = string.gsub(sub(arg, ids_at, ids_at + 8 * granted - 1) .. trailer, '........',
  '%0' .. behind, granted)
