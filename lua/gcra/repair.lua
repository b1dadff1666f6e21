-- Forgets what is in use beyond the whole limit: the work of a wrong clock, by any clock.
--
-- KEYS  1-5, see lib/state.lua and lib/gcra.lua
-- ARGV  1  now, ms; empty for the server's clock
-- Reply 1  1; negative: an error, alone in the reply
--       2  permits that had been lost: those beyond the rate that were in use
--       3  permits left
--
-- Redisson has no such operation.

local limit, unreadable = read_limit()
if not limit then
  return unreadable
end
local now, pace, state = micros(ARGV[1]), limit.pace, limit.state
-- All of it, as if by a caller's clock, which proves nothing.
local backlog = backlog_of(state, pace, now, true)
local used = rounded_up(backlog, pace.emission)
local lost = math.max(used - pace.rate, 0)
if state and state.tat > now then
  -- So that the key's expiry is set anew, even if it was changed by hand.
  state.ends = 0
  backlog = math.min(backlog, pace.whole)
  write_state(limit.value_key, state, backlog, 0, pace, now, ARGV[1] ~= '')
end
keep_limit(limit.keep_alive_time, backlog)
return { 1, lost, pace.rate - used + lost }
