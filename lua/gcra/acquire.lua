-- Takes permits of one limiter for one caller, or reports how far its permits are taken ahead. The
-- hot path.
--
-- KEYS  1  the value, or that of one client. No other key is read: the limit is the caller's
-- ARGV  1  five doubles, little-endian, in a text:
--          the limit: interval (ms) and rate, as the value starts
--          us that the permits take
--          us that may lie ahead of now for them to be granted: what all permits take, less that
--          now, us since the epoch; below zero for the server's clock
-- Reply refused: how far tat lies ahead of now, us
--       granted: three doubles in a text: now and tat, us since the epoch, and what was given back
--       nil: the value is counted by another limit, belongs to another algorithm or comes from a
--       wrong clock. Nothing was taken; acquire_run.lua decides
--
-- Redisson has no such limiter. This script stands alone, without lib/state.lua and state.lua,
-- which describes the value. An argument, and a number that is text, cost more than what is done
-- with them: so the caller sends all numbers in one, as Redis keeps them, and computes the rest of
-- the reply. Not safe to send twice: one grant looks like another.

local call, unpack = redis.call, struct.unpack
local interval, rate, cost, room, now = unpack('<ddddd', ARGV[1])
local stored, tat, ends, given = call('GET', KEYS[1]), 0, 0, 0
if stored then
  local counted_interval, counted_rate
  if #stored == 40 then
    counted_interval, counted_rate, tat, ends, given = unpack('<ddddd', stored)
  end
  if counted_interval ~= interval or counted_rate ~= rate then
    return nil
  end
end
local own = now < 0
if own then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local backlog = tat - now
if backlog > room then
  -- More than all permits take: by the server's clock that must be set back.
  if own and backlog > room + cost then
    return nil
  end
  return backlog
end
if backlog < 0 then
  tat = now
end
tat = tat + cost
if tat <= ends then
  call('SETRANGE', KEYS[1], '16', struct.pack('<d', tat))
else
  -- Extended by as much as all permits take, so that most calls leave it alone and only overwrite
  -- tat, at a third of the cost. With a caller's clock it lives a minute longer, as in
  -- state.lua.
  ends = math.min(tat + cost + room, 9007199254740991)
  local life = (ends - now) / 1000 + (own and 1 or 60001)
  call('SET', KEYS[1], struct.pack('<ddddd', interval, rate, tat, ends, given), 'PX',
    string.format('%d', life))
end
return struct.pack('<ddd', now, tat, given)
