-- Plays the script that is put in its middle by a given time, and reports what it has written.
--
-- ARGV  1  that of the script
--       2 and 3  the time, as TIME returns it
-- Reply    the script's; the names of its writes to each key, with the ms of a PX, and behind them
--          how many bytes it has read; then for each key its type, its value, and its TTL in ms.
--          Each key is kept for long, so that none expires by the server's own time.

local real, writes, bytes = redis, {}, 0
local read = ' GET GETRANGE STRLEN TYPE EXISTS PTTL PEXPIRETIME '

local long = '5000000000000000'

local function watched(how)
  return function(command, ...)
    local name = string.upper(command)
    if name == 'TIME' then
      return { ARGV[2], ARGV[3] }
    end
    if not string.find(read, ' ' .. name .. ' ', 1, true) then
      local key, text, option, life = ...
      writes[key] = (writes[key] or '') .. name .. (option == 'PX' and ':' .. life or '') .. ' '
      if option == 'PX' then
        -- Where scripts run outside of the server, a short life could end before the reply.
        return real[how](command, key, text, option, long, select(5, ...))
      end
    end
    local reply = real[how](command, ...)
    bytes = bytes + (name == 'GETRANGE' and type(reply) == 'string' and #reply or 0)
    return reply
  end
end

local function play()
  local redis = setmetatable({ call = watched('call'), pcall = watched('pcall') },
    { __index = real })
--- the script
end

-- A list of a script cannot begin with nil; false is nil in a reply.
local reply = { play() or false, {} }
reply[2][#KEYS + 1] = tostring(bytes)
for place, key in ipairs(KEYS) do
  reply[2][place] = writes[key] or ''
  local kind = redis.call('TYPE', key).ok
  local value = kind == 'string' and redis.call('GET', key) or ''
  reply[#reply + 1] = { kind, value, redis.call('PTTL', key) }
  redis.call('PEXPIRE', key, long)
end
return reply
