-- Sets the limit, whatever was set before.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1 rate   2 interval, ms   3 type   4 keepAliveTime, ms
--       5  not used: windows end by the server's clock
--       6  '1' to keep counting what is in use, '0' to start anew with all permits
--       7  '1' to change a limit that is set, and none otherwise
-- Reply 1 if the limit was set, 0 if there was none to change
--
-- RRateLimiter.setRate(args) and updateRate(args) of Redisson 4.7.0, adapted: releases of Redisson
-- that counted by windows had only trySetRate.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
if ARGV[7] == '1' and not (limit[1] and limit[2] and limit[3]) then
  return 0
end
local rate, interval = tonumber(ARGV[1]), tonumber(ARGV[2])
local value_key, log = KEYS[2], KEYS[4]
if ARGV[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end

local before = rate_and_interval(limit)
local kept = ARGV[6] == '1' and before and limit[3] == ARGV[3]
local stored, left
if kept then
  -- Before the first write: a key of another type under the value's name is an error.
  stored, left = open_window(value_key, log, interval)
end
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2],
  'keepAliveTime', ARGV[4], 'type', ARGV[3])
if stored then
  -- Below zero if more is in use than the new rate allows: so it holds at once.
  redis.call('SET', value_key, math.min(stored + rate - before, rate), 'KEEPTTL')
elseif limit[3] and limit[3] ~= ARGV[3] then
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
elseif not kept then
  redis.call('UNLINK', value_key, log)
end
if ARGV[4] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  keep_limit(value_key, left, tonumber(ARGV[4]), interval)
end
return 1
