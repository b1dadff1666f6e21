-- Takes permits of one limiter by GCRA for one caller, with the commands of the usual case alone:
-- what decide.lua does, which decides where this script replies nil. gcra.lua describes the state.
--
-- KEYS  1  the state, {N}~
-- ARGV  1  c8 id, B 0, B 1: the caller as the state has it; and five doubles, little-endian:
--          now, us since the epoch; 0 for the server's clock
--          the us that the permits take
--          the us by which tat may lie ahead of now if they are granted: what all permits take,
--          minus the above
--          the limit: interval, ms, and rate
-- Reply refused: how far tat lies ahead of now, us
--       granted: three doubles in a text: now and tat, us since the epoch, and what was given back
--       nil: the state is another one, was counted by another limit, or comes from a clock that was
--       set back. Nothing was taken
--
-- Passing an argument or a reply and packing an integer cost more than the work on it. So numbers
-- are doubles, and the caller computes the rest of the reply itself. In Lua 5.4 they are floats,
-- and only whole numbers may leave the script.

local call, unpack, key, arg = redis.call, struct.unpack, KEYS[1], ARGV[1]
local now, cost, room, interval, rate = unpack('<ddddd', arg, 11)
local state = call('GET', key)
if state and #state ~= 76 then
  return nil
end
local of_interval, of_rate, ends, given, tat, ids, form =
  unpack('<I6I7I7I7I7c40H', state or string.rep('\0', 76))
if state and (of_interval ~= interval or of_rate ~= rate or form ~= 18 + 256 * 183) then
  return nil
end
local time = call('TIME')
local server = time[1] * 1000000 + time[2]
local micros = now > 0 and now or server
local backlog = tat - micros
if backlog > room then
  if now == 0 and backlog > 2 * (cost + room) then
    return nil
  end
  return math.type and math.floor(backlog) or backlog
end
backlog = backlog > 0 and backlog + cost or cost
tat = micros + backlog
local pack = struct.pack
-- The expiry is extended by as much as all permits take, so most grants leave it. A server whose
-- time goes on while a script runs may have dropped the key since it was read: SETRANGE then leaves
-- a shorter one.
if server + backlog > ends or tat >= 9007199254740992
  or call('SETRANGE', key, '27', pack('<I7c10c30', tat, arg, ids)) ~= 76 then
  tat, ends = math.min(tat, 9007199254740991), math.min(server + backlog + cost + room,
    9007199254740991)
  call('SET', key, pack('<I6I7I7I7I7c10c30BB', interval, rate, ends, given, tat, arg,
    ids, 18, 183),
    'PX', string.format('%d', math.floor((ends - server) / 1000 + (now > 0 and 60002 or 2))))
end
return pack('<ddd', micros, tat, given)
