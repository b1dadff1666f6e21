-- Releases permits of the open window, without saying which.
--
-- KEYS  1-5, see lib/state.lua and lib/fixed_window.lua
-- ARGV  1  permits to release; the other arguments of the sliding log's release are not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits released: fewer if not as many are in use
--       3  permits left
--
-- RRateLimiter.release of Redisson 4.7.0, adapted: releases of Redisson that counted by windows had
-- none. Not safe to send twice; with a receipt, use settle.lua.

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local rate, interval, value_key, log = limit.rate, limit.interval, limit.value_key, limit.log
local stored, left = open_window(value_key, log, interval)
if not stored then
  return { 1, 0, rate }
end
local before = math.min(stored, rate)
local value = math.min(before + tonumber(ARGV[1]), rate)
if value ~= stored then
  redis.call('SET', value_key, value, 'KEEPTTL')
end
keep_limit(value_key, left, limit.keep_alive_time, interval)
return { 1, value - before, value }
