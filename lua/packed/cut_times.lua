-- Returns records of `size` bytes, the last six of which are a time, with no time later than
-- `latest`. A fragment of rare.lua and ban.lua.

local function cut_times(records, size, latest)
  return (string.gsub(records, string.rep('.', size), function(record)
    return sub(record, 1, -7) .. pack('<I6', min(latest, (unpack('<I6', record, size - 5))))
  end))
end
