-- Reads a limiter, with one page of its log, and changes nothing: it repairs nothing, sets no TTL
-- and removes no expired entry.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1  the rank of the first entry to read     2  how many entries to read
-- Reply 1  the server's clock, ms since the epoch
--       2  rate, interval, type and keepAliveTime as stored, nil for each that is missing
--       3  PTTL of each of the five keys
--       4  value as stored, nil if it is missing     5  how many entries the log has
--       6  the page: member, score and so on
--
-- Redisson has no such operation. A call reads everything at one instant. So if the log is one
-- page, value and log belong together. If it is more, the caller compares the value and the number
-- of entries of all pages: if they are equal, nothing has changed meanwhile.
--
--- @include lib/state.lua

local limit = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local value_key, log = KEYS[2], KEYS[4]
if limit[3] == '1' or not limit[3] and redis.call('EXISTS', value_key) == 0
  and redis.call('EXISTS', KEYS[3]) == 1 then
  value_key, log = KEYS[3], KEYS[5]
end
local lives = {}
for place, key in ipairs(KEYS) do
  lives[place] = redis.call('PTTL', key)
end
local page = redis.call('ZRANGE', log, ARGV[1], ARGV[1] + ARGV[2] - 1, 'WITHSCORES')
for at = 2, #page, 2 do
  -- Scores are numbers on some servers, and in a reply a text everywhere.
  page[at] = string.format('%.17g', page[at])
end
return { clock(''), limit, lives, redis.call('GET', value_key), redis.call('ZCARD', log), page }
