-- Sets the limit, whatever was set before.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1 rate   2 interval, ms   3 type   4 keepAliveTime, ms
--       5  now, ms; empty for the server's clock
--       6  '1' to keep counting what is in use, '0' to start anew with all permits
--       7  '1' to change a limit that is set, and none otherwise
-- Reply 1 if the limit was set, 0 if there was none to change
--
-- RRateLimiter.setRate(args) and updateRate(args) of Redisson 4.7.0, adapted. What is in use is
-- counted by the new limit from now on.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
local stored = limit[1] and limit[2] and limit[3]
if ARGV[7] == '1' and not stored then
  return 0
end
-- Before the first write: a key of another type under the value's name is an error.
local value_key = ARGV[3] == '1' and KEYS[3] or KEYS[2]
local state = read_state(value_key)
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2],
  'keepAliveTime', ARGV[4], 'type', ARGV[3])
if limit[3] and limit[3] ~= ARGV[3] then
  redis.call('UNLINK', KEYS[2], KEYS[3])
  state = nil
elseif ARGV[6] ~= '1' then
  redis.call('UNLINK', value_key)
  state = nil
end
local now, pace = micros(ARGV[5]), pace_of(number_of(ARGV[1]), number_of(ARGV[2]))
local backlog = 0
if state and pace then
  backlog = backlog_of(state, pace, now, ARGV[5] ~= '')
  if differ(state, pace) or is_beyond(state, backlog, now) then
    write_state(value_key, state, backlog, 0, pace, now, ARGV[5] ~= '')
  end
end
keep_limit(tonumber(ARGV[4]), backlog, true)
return 1
