-- Sets the limit, whatever was set before.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1 rate   2 interval, ms   3 type   4 keepAliveTime, ms
--       5  now in ms since the epoch, or empty for the server's clock
--       6  '1' to keep counting what is in use, '0' to start anew with all permits
--       7  '1' to change a limit that is set, and none otherwise
-- Reply 1 if the limit was set, 0 if there was none to change, negative for an error
--
-- RRateLimiter.setRate(args) and updateRate(args) of Redisson 4.7.0. Those forget the excess over a
-- lowered rate, so that it never holds under load, and leave an old TTL running if there is no
-- keep-alive time any more.

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
if ARGV[7] == '1' and not (limit[1] and limit[2] and limit[3]) then
  return 0
end
local now = clock(ARGV[5])
local rate, interval = tonumber(ARGV[1]), tonumber(ARGV[2])
local value_key, log = KEYS[2], KEYS[4]
if ARGV[3] == '1' then
  value_key, log = KEYS[3], KEYS[5]
end

-- All reading comes before the first write: a foreign entry changes nothing.
local value
if ARGV[6] == '1' and (not limit[3] or limit[3] == ARGV[3]) then
  local stored = value_of(value_key)
  if stored and limit[2] == ARGV[2] and number_of(limit[1]) then
    -- Below zero if more is in use than the new rate allows: so it holds at once.
    value = stored + rate - tonumber(limit[1])
  else
    local live = live_permits(log, now, interval)
    if not live then
      return FOREIGN_MEMBER
    end
    if live > 0 then
      value = rate - live
    end
  end
end

redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2],
  'keepAliveTime', ARGV[4], 'type', ARGV[3])
if limit[3] and limit[3] ~= ARGV[3] then
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
elseif value then
  redis.call('SET', value_key, value, 'KEEPTTL')
else
  redis.call('UNLINK', value_key, log)
end

if ARGV[4] == '0' then
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', value_key)
  redis.call('PERSIST', log)
else
  keep_alive(KEYS[1], value_key, log, tonumber(ARGV[4]), interval)
end
return 1
