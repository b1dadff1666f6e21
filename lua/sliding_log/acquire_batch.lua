-- Carries out several calls of acquire.lua, each by itself: an error is that of its limiter alone.
--
-- KEYS  those of each call, one after the other
-- ARGV  1  the number of rows
--       for each row eight: how many keys a call has; its first seven arguments
--       for each call three: its row, counted from 0; its other two arguments
-- Reply that of each call; nil for one that ended in an error
--
-- Redisson has no such operation.
--
--- @include lib/decide.lua
--- @include sliding_log/acquire.lua

end

local replies, tables, key = {}, {}, 1
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
for at = 2 + 8 * ARGV[1], #ARGV, 3 do
  local row = ARGV[at]
  local given = tables[row]
  -- What is not usual is left to acquire_list.lua, which has more arguments.
  if not given or given[10] then
    local first = 2 + 8 * row
    given = { ARGV[first + 1], ARGV[first + 2], ARGV[first + 3], ARGV[first + 4], ARGV[first + 5],
      ARGV[first + 6], ARGV[first + 7], keys = ARGV[first] + 0 }
    given.now = given[1] == '' and now or nil
    tables[row] = given
  end
  given[8], given[9] = ARGV[at + 1], ARGV[at + 2]
  local keys = { KEYS[key], KEYS[key + 1], KEYS[key + 2] }
  if given.keys == 5 then
    keys[4], keys[5] = KEYS[key + 3], KEYS[key + 4]
  end
  key = key + given.keys
  local decided, reply = pcall(decide, keys, given)
  replies[#replies + 1] = decided and reply
end
return replies
