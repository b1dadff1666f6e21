-- Releases permits that are in use, without saying which.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  permits to release   2  now, ms; empty for the server's clock; the id of the sliding
--       log's release is not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits released: fewer if not as many are in use
--       3  permits left
--
-- RRateLimiter.release of Redisson 4.7.0, adapted. Not safe to send twice; with a receipt, use
-- settle.lua.

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local now, pace = micros(ARGV[2]), limit.pace
local backlog = backlog_of(limit.state, pace, now, ARGV[2] ~= '')
local used = rounded_up(backlog, pace.emission)
local released = math.min(tonumber(ARGV[1]), used)
if released > 0 then
  backlog = math.max(backlog - released * pace.emission, 0)
  write_state(limit.value_key, limit.state, backlog, 0, pace, now, ARGV[2] ~= '')
end
keep_limit(limit.keep_alive_time, backlog)
return { 1, released, pace.rate - used + released }
