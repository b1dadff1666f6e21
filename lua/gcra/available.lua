-- Counts the permits that are free now. Changes nothing but the limit's expiry, and the effect of a
-- wrong clock.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  now, ms; empty for the server's clock; the id of the sliding log's available is not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits left; below zero, by a caller's clock, if another's is ahead
--       3  the time that was used, ms since the epoch
--       4  rate and  5  interval, ms, in force
--
-- RRateLimiter.availablePermits of Redisson 4.7.0, adapted.

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local now = micros(ARGV[1])
local given_clock, pace, state = ARGV[1] ~= '', limit.pace, limit.state
local backlog = backlog_of(state, pace, now, given_clock)
if is_beyond(state, backlog, now) and not differ(state, pace) then
  write_state(limit.value_key, state, backlog, 0, pace, now, given_clock)
end
keep_limit(limit.keep_alive_time, backlog)
local left = pace.rate - rounded_up(backlog, pace.emission)
return { 1, left, math.floor(now / 1000), pace.rate, pace.interval }
