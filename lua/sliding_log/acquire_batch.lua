-- Carries out several calls of acquire.lua, each by itself: an error is that of its limiter alone.
--
-- KEYS  those of each call, one after the other
-- ARGV  1  for each call a byte: its row, counted from 1
--       for each row four: how many keys a call has; its first, third and fourth argument
--       for each call its members
-- Reply that of each call; nil for one that ended in an error
--
-- Redisson has no such operation. A table costs as much as an argument: calls of a row share one.
--
--- @include lib/decide.lua
--- @include sliding_log/acquire.lua

end

local replies, rows, keys, key = {}, {}, {}, 0
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
local calls, before = ARGV[1], #ARGV - #ARGV[1]
for place = 1, #calls do
  local row = string.byte(calls, place)
  local given = rows[row]
  -- What is not usual is left to acquire_list.lua, which has more arguments.
  if not given or given[5] then
    local first = 4 * row - 2
    given = { ARGV[first + 1], '', ARGV[first + 2], ARGV[first + 3] }
    given.keys, given.now = ARGV[first] + 0, given[3] == '' and now or nil
    local rate, interval, keep = string.match(given[1], '^code (%d+) (%d+) %d (%d+)$')
    if rate then
      given.rate, given.interval, given.keep = rate + 0, interval + 0, keep + 0
    end
    rows[row] = given
  end
  given[2] = ARGV[before + place]
  keys[1], keys[2], keys[3], keys[4], keys[5] = KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]
  if given.keys == 5 then
    keys[4], keys[5] = KEYS[key + 4], KEYS[key + 5]
  end
  key = key + given.keys
  local decided, reply = pcall(decide, keys, given)
  replies[place] = decided and reply
end
return replies
