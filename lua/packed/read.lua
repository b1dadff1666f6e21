-- Reads the state of a charge. A fragment of decide.lua, simple.lua and request.lua.

-- The last bytes: all of any state, and of a log ten records. An error is a table.
page = try('GETRANGE', name, '-260', '-1')
if #page == 0 then
  if page.err then
    -- A key that is no string is as one with a foreign state. Any other error ends the call.
    page = string.find(page.err, 'WRONGTYPE', 1, true) and '?' or error(page.err, 0)
  else
    -- An empty string is foreign. A lone call that takes finds that out when it writes.
    is_absent = row_count == 0
    page = (is_absent or call('EXISTS', name) == 0) and '' or '?'
  end
end
