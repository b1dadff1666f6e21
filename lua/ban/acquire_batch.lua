-- Carries out several calls of acquire.lua. Each call fails alone: its error does not affect
-- others.
--
-- KEYS  those of each call, one after the other
-- ARGV  for each call: how many keys and how many arguments it has; its arguments
-- Reply for each call its reply; nil if it ended in an error
--
-- Redisson has no bans.
--
--- @include lib/decide.lua
--- @include ban/acquire.lua, around a sliding log

end

local unpack = rawget(_G, 'unpack') or table.unpack
local replies, key, at = {}, 0, 0
while at < #ARGV do
  local last, until_then = key + ARGV[at + 1], at + 2 + ARGV[at + 2]
  local decided, reply = pcall(function()
    return decide({ unpack(KEYS, key + 1, last) }, { unpack(ARGV, at + 3, until_then) })
  end)
  key, at = last, until_then
  replies[#replies + 1] = decided and reply
end
return replies
