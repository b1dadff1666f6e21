-- Takes permits of one limiter for one caller, or reports by how much they come too early. The hot
-- path.
--
-- KEYS  1  the value, or that of one client. No other key is read: the limit is the caller's
-- ARGV  1  now, ms; empty for the server's clock
--       2  the limit: interval (ms) and rate, two doubles, little-endian, as the value starts
--       3  two doubles, us: what the permits take, and what may lie ahead of now for them to be
--          granted: what all permits take, less that
-- Reply refused: how far tat lies ahead of now, us
--       granted: three doubles in a text: now and tat, us since the epoch, and what was given back
--       nil: the value is counted by another limit, belongs to another algorithm or comes from a
--       wrong clock. Nothing was taken; acquire_run.lua decides
--
-- Redisson has no such limiter. This script stands alone, without lib/state.lua and state.lua,
-- which describes the value. Numbers cost more than commands: so the caller sends them as Redis
-- keeps them, and computes the rest of the reply. Not safe to send twice: one grant looks like
-- another.

local call, unpack = redis.call, struct.unpack
local stored = call('GET', KEYS[1])
local limit = ARGV[2]
if stored and string.sub(stored, 1, 16) ~= limit then
  return nil
end
local now
if ARGV[1] == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = ARGV[1] * 1000
end
local cost, room = unpack('<dd', ARGV[3])
local tat, ends, given = now, 0, 0
if stored then
  tat, ends, given = unpack('<ddd', stored, 17)
  local backlog = tat - now
  if backlog > room then
    -- More than all permits take: by the server's clock that must be set back.
    if backlog > room + cost and ARGV[1] == '' then
      return nil
    end
    return backlog
  end
  if backlog < 0 then
    tat = now
  end
end
tat = tat + cost
if tat <= ends then
  call('SETRANGE', KEYS[1], '16', struct.pack('<d', tat))
else
  -- Extended by as much as all permits take, so that most calls leave it alone and only overwrite
  -- tat, at a third of the cost. With a caller's clock it lives a minute longer, as in
  -- state.lua.
  ends = math.min(tat + cost + room, 9007199254740991)
  local life = (ends - now) / 1000 + (ARGV[1] == '' and 1 or 60001)
  call('SET', KEYS[1], limit .. struct.pack('<ddd', tat, ends, given),
    'PX', string.format('%d', life))
end
return struct.pack('<ddd', now, tat, given)
