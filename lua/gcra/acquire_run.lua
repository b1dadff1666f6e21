-- Takes permits of one limiter for one caller or several, or reports when they will be free,
-- whichever limit counts.
--
-- KEYS  1-5, see lib/state.lua and state.lua
-- ARGV  those of sliding_log/acquire_list.lua for one limiter; not used are 2, as the permits left
--       are always exact, and the callers' members, as there is no log:
--       1  now, ms; empty for the server's clock
--       3  whose limit counts: 'redis' the hash's; 'init' the hash's, else the one given; 'code'
--          the one given; 'keep' that of the value if it differs, else the one given. The last two
--          read no hash
--       4  rate   5  interval, ms   6  type   7  keepAliveTime, ms; all empty with 'redis'
--       8, 9, 10, 11, and so on in fours, for each caller in the order of arrival:
--          '1' if it waits in the queue, else '0';  permits to take, 1 .. 2^32 - 1;  not used;
--          not used
-- Reply 1 to 9 and then in pairs, for each caller: those of sliding_log/acquire_list.lua; 4 is
--       when tat is past
--       and two more  tat, us since the epoch, and what was given back, us: for receipts
--
-- Redisson has no such limiter. Each caller is granted whole or not at all. A caller that waits in
-- the queue and does not fit blocks those behind it; a caller that does not wait takes what is
-- left. Not safe to send twice, as grants cannot be told apart.
--
--- @include lib/state.lua
--- @include lib/callers.lua
--- @include gcra/state.lua

local given_clock = ARGV[1] ~= ''
local now = micros(ARGV[1])
local source = ARGV[3]
local of_code = source == 'code' or source == 'keep'

-- The limit in force.

local limit = { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }
local changed = 0
if not of_code then
  local stored = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if not (stored[1] and stored[2] and stored[3]) then
    if source == 'redis' then
      return { UNINITIALIZED }
    end
    changed = 1
  end
  for field = 1, 4 do
    limit[field] = stored[field] or limit[field]
  end
end
local pace = pace_of(number_of(limit[1]), number_of(limit[2]))
if not pace then
  return { UNREADABLE }
end
local value_key = keys_of(limit[3])
local state = read_state(value_key)
if differ(state, pace) and source == 'keep' then
  pace = state.pace
elseif differ(state, pace) and of_code then
  changed = 2
end
local rate, emission = pace.rate, pace.emission

local reply = { 1, math.floor(now / 1000), 0, 0, rate, pace.interval, changed, 0, 0 }
if changed == 0 and (state or not of_code) and not is_possible(rate) then
  decide(reply, 0, rate)
  reply[#reply + 1] = 0
  reply[#reply + 1] = 0
  return reply
end

-- The decisions.

local backlog = backlog_of(state, pace, now, given_clock)
local left = rate - rounded_up(backlog, emission)
local rest, refused = decide(reply, left, rate)
local taken = left - rest

-- The stored state. A call that takes nothing creates no key. A call that meets a tat from a wrong
-- clock resets it, whether it grants or not: otherwise the limiter would refuse for as long.

local tat, given = now + backlog, 0
if taken > 0 or differ(state, pace) or is_beyond(state, backlog, now) then
  tat, given = write_state(value_key, state, backlog, taken * emission, pace, now, given_clock)
  backlog = tat - now
end
if not of_code then
  if changed == 1 then
    write_limit(KEYS[1], limit)
  end
  keep_limit(tonumber(limit[4]) or 0, backlog, changed == 1)
end

for _, caller in ipairs(refused) do
  -- Redis rounds numbers in a reply to integers, and Lua is exact only up to this one.
  local wait = math.min(backlog + caller.needs * emission - pace.whole, MOST)
  reply[caller.place] = math.ceil(wait / 1000)
end
reply[3] = rest
reply[4] = math.ceil(backlog / 1000)
if backlog > 0 and rest >= 0 then
  reply[9] = math.ceil((backlog - (rounded_up(backlog, emission) - 1) * emission) / 1000)
end
reply[#reply + 1] = tat
reply[#reply + 1] = given
return reply
