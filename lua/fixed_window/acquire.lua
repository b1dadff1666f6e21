-- Takes permits of one limiter for one caller or several, or reports when they will be free. The
-- hot path.
--
-- KEYS  1-5, see lib/state.lua and state.lua
-- ARGV  those of sliding_log/acquire_list.lua for one limiter; not used are 1, now, as windows end
--       by the server's clock, 2, as the permits left are always exact, and the callers' members,
--       as there is no log:
--       3  whose limit counts: 'redis' the stored one; 'init' the stored one, else the one given;
--          'code' the one given, 'keep' the same but a differing stored one is left for now
--       4  rate   5  interval, ms   6  type   7  keepAliveTime, ms; all empty with 'redis'
--       8, 9, 10, 11, and so on in fours, for each caller in the order of arrival:
--          '1' if it waits in the queue, else '0';  permits to take, 1 .. 2^32 - 1;  not used;
--          not used
-- Reply 1  1; negative: an error, alone in the reply
--       2  the server's time, ms since the epoch
--       3  permits left after this call
--       4  ms until all permits are free; 0 if they are. One ms less is when the window ends
--       5  rate and  6  interval, ms, in force
--       7  0 nothing, 1 the limit was created, 2 the limit was rewritten
--       8  0: there are no scores to reset
--       9  ms until at least one more permit is free: as 4
--       10, 11, and so on in pairs, for each caller:
--          1 granted, 0 refused, 2 refused whenever it comes: more permits than the rate
--          ms until its permits are free, also for the callers that wait before it; 0 if granted
--
-- RRateLimiter.tryAcquire of Redisson 3.7.1 to 3.13.2 on the same state, except that the wait it
-- reports ends just after the window instead of with it. Each caller is granted whole or not at
-- all. A caller that waits in the queue and does not fit blocks those behind it; a caller that does
-- not wait takes what is left. Not safe to send twice, as grants cannot be told apart.
--
--- @include lib/state.lua
--- @include fixed_window/state.lua

local now = clock('')
local book, unreadable = read_book(0, ARGV[3], 3)
if not book then
  return unreadable
elseif book.old_rate % 1 ~= 0 then
  -- SET needs a whole number.
  return { UNREADABLE }
end
local rate, interval, changed = book.rate, book.interval, book.changed

local reply, is_possible = { 1, now, 0, 0, rate, interval, changed, 0, 0 }, changed > 0
for i = 9, #ARGV, 4 do
  is_possible = is_possible or tonumber(ARGV[i]) <= rate
end
local value_key, log = book.value_key, book.log
local stored, left, value = nil, nil, 0
if is_possible then
  stored, left = open_window(value_key, log, interval)
  if changed > 0 then
    -- Not earlier: a key of another type under the value's name is an error, and must leave the
    -- limit as it is.
    write_limit(KEYS[1], book.limit)
  end
  -- A lowered rate holds at once: value may fall below zero.
  value = stored and math.min(stored + (rate - book.old_rate), rate) or rate
end

-- The decisions: for each refused caller, the place of its wait in the reply, and the permits that
-- must be free for it.

local needs, closed, in_line = {}, false, 0
for i = 8, #ARGV, 4 do
  local waits, permits, status = ARGV[i] == '1', tonumber(ARGV[i + 1]), REFUSED
  if value >= permits and not (closed and waits) then
    status, value = GRANTED, value - permits
  elseif permits > rate then
    status = ABOVE_RATE
  else
    in_line = waits and in_line + permits or in_line
    needs[#reply + 2] = waits and in_line or permits
    closed = closed or waits
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = 0
end
if not is_possible then
  return reply
end

-- The stored state. A call that takes nothing opens no window.

if stored then
  write_value(value_key, stored, value)
elseif value < rate then
  redis.call('SET', value_key, value, 'PX', interval)
  -- A sliding log left it, and it no longer counts.
  redis.call('UNLINK', log)
  left = interval
end
left = keep_limit(value_key, left, book.keep_alive_time, interval, changed == 1)

for place, number in pairs(needs) do
  -- More than the rate is never free in one window.
  reply[place] = left + 1 + math.floor((number - 1) / rate) * (interval + 1)
end
reply[3] = value
reply[4] = value < rate and left + 1 or 0
reply[9] = reply[4]
return reply
