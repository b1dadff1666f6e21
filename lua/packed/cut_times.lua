-- Returns what has so many bytes each with each time, the last of these, cut to the latest. A
-- fragment of rare.lua and ban.lua.

local function cut_times(records, size, latest)
  return (string.gsub(records, string.rep('.', size), function(record)
    return sub(record, 1, -7) .. pack('<I6', min(latest, (unpack('<I6', record, size - 5))))
  end))
end
