-- Carries out several calls of acquire.lua. Each call fails alone: its error does not affect
-- others.
--
-- KEYS  those of each call, one after the other
-- ARGV  1  for each call one byte: the number of its row, from 1 on
--       for each row four: how many keys a call has; its first, third and fourth argument
--       for each call its members, which are its second argument
-- Reply for each call its reply; nil if it ended in an error
--
-- Redisson has no such operation. Calls with the same other arguments share a row and its table, as
-- a table costs as much time as an argument.
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
  -- `decide` gets the arguments of a row as its ARGV. In an unusual case acquire.lua overwrites
  -- them with the arguments of acquire_list.lua, of which there are more than four. So the row is
  -- read again after that.
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
