-- Forgets what is in use beyond the whole limit: a debt, or the work of a wrong clock, which nobody can tell apart.
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
local now = micros(ARGV[1])
local backlog = backlog_of(limit.state, limit.rate, limit.interval, limit.emission, now)
local used = rounded_up(backlog, limit.emission)
local lost = math.max(used - limit.rate, 0)
if limit.state and limit.state.tat > now then
  local state = limit.state
  -- So that the key's end is set anew, whatever a hand has made of it.
  local mended = { tat = state.tat, ends = 0, given = state.given }
  backlog = math.min(backlog, limit.whole)
  write_state(limit.value_key, mended, now + backlog, limit.rate, limit.interval, limit.whole, now, ARGV[1] ~= '')
end
keep_limit(limit.keep_alive_time, backlog)
return { 1, lost, limit.rate - used + lost }
