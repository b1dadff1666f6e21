-- Takes permits of one limiter for one caller, or reports how far tat lies ahead. The hot path.
--
-- KEYS  1  the value, or that of one client. No other key is read: the limit is the caller's
-- ARGV  1  five doubles, little-endian, in a text:
--          the limit: interval (ms) and rate, as at the start of the value
--          the us that the permits take
--          the us by which tat may lie ahead of now if they are granted: what all permits take,
--          minus the above
--          now, us since the epoch; below zero for the server's clock
-- Reply refused: how far tat lies ahead of now, us
--       granted: three doubles in a text: now and tat, us since the epoch, and what was given back
--       nil: the value was counted by another limit, belongs to another algorithm or comes from a
--       wrong clock. Nothing was taken; acquire_run.lua decides
--
-- Redisson has no such limiter. state.lua describes the value; neither it nor lib/state.lua is part
-- of this script. Passing an argument or parsing a number costs more than the work on it. So the
-- caller sends all numbers as one argument, in the form in which Redis stores them, and computes
-- the rest of the reply itself. In Lua 5.4 they are floats, and only whole numbers may leave the
-- script. Not safe to send twice, as one grant is like another.

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
  -- Further ahead than all permits take: by the server's clock, such a tat must be reset.
  if own and backlog > room + cost then
    return nil
  end
  return math.floor(backlog)
end
if backlog < 0 then
  tat = now
end
tat = tat + cost
if tat <= ends then
  call('SETRANGE', KEYS[1], '16', struct.pack('<d', tat))
else
  -- The expiry is extended by as much as all permits take. So most calls need not extend it and
  -- only overwrite tat, at a third of the cost. With a caller's clock the key lives a minute
  -- longer, as in state.lua.
  ends = math.min(tat + cost + room, 9007199254740991)
  local life = (ends - now) / 1000 + (own and 1 or 60001)
  call('SET', KEYS[1], struct.pack('<ddddd', interval, rate, tat, ends, given), 'PX',
    string.format('%d', math.floor(life)))
end
return struct.pack('<ddd', now, tat, given)
