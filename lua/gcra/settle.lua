-- Settles what one acquire took: releases the part of it that still lies ahead, or charges more.
-- Not safe to send twice: whether it was settled before is not stored.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  permits to release; below zero: to charge, from now on
--       2  now, ms; empty for the server's clock
--       3  tat and  4  what was given back, us, as the acquire left them
--       5  whose limit counts: 'redis', 'init' or 'code'
--       6  rate   7  interval, ms   8  type   9  keepAliveTime, ms; all empty with 'redis'. 'init'
--          writes them if there is no limit to charge more against
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits credited, below zero if charged; 0 if there was nothing to do
--
-- Redisson has no such operation.

local credited, of_code = tonumber(ARGV[1]), ARGV[5] == 'code'
local limit = { ARGV[6], ARGV[7], ARGV[8], ARGV[9] }
local created = false
if not of_code then
  local stored = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if stored[1] and stored[2] and stored[3] then
    limit = stored
  elseif credited < 0 and ARGV[5] == 'init' then
    -- An idle limiter vanishes, and an answer can last longer: what it owes must find it again.
    created = true
  else
    return { UNINITIALIZED }
  end
end
local pace = pace_of(number_of(limit[1]), number_of(limit[2]))
if not pace then
  return { UNREADABLE }
end
local value_key = limit[3] == '1' and KEYS[3] or KEYS[2]
local state = read_state(value_key)
if state and of_code then
  -- Another process may have another limit, and it is for acquire to say whose counts.
  pace = state.pace
end
local now = micros(ARGV[2])
local backlog = backlog_of(state, pace, now, ARGV[2] ~= '')

if credited < 0 then
  -- Debt: it was used, so it counts at once, until all permits are in use.
  local tat = write_state(value_key, state, backlog, -credited * pace.emission,
    pace, now, ARGV[2] ~= '')
  if created then
    redis.call('HSET', KEYS[1], 'rate', limit[1], 'interval', limit[2],
      'keepAliveTime', limit[4], 'type', limit[3])
  end
  if not of_code then
    keep_limit(tonumber(limit[4]) or 0, tat - now, created)
  end
  return { 1, credited }
end

if not state then
  return { 1, 0 }
end
-- Permits released since may have been before it, and moved it forward by as much; so may a greater
-- limit.
local since = (state.given - tonumber(ARGV[4])) % WRAP + math.max(state.tat - now - backlog, 0)
local ahead = math.min(tonumber(ARGV[3]) - since - now, backlog)
local moved = math.min(credited * pace.emission, ahead)
if moved <= 0 then
  return { 1, 0 }
end
write_state(value_key, state, backlog - moved, 0, pace, now, ARGV[2] ~= '')
return { 1, rounded_up(moved, pace.emission) }
