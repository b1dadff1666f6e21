-- Takes permits of one limiter in a window of the calendar, for one caller or several, or reports
-- when they will be free. The hot path.
--
-- KEYS  1  see state.lua
-- ARGV  1  rate
--       2, 3, 4  the present window by the caller's clock: its label, a number that is greater for
--          later windows; its start and its end, ms since the epoch
--       5, 6, 7  the window after it
--       8, 9, 10, 11, and so on in fours, for each caller: see lib/callers.lua
-- Reply 1  1; -5 if neither window holds the server's time, which follows alone; negative
--          otherwise: an error, alone in the reply
--       2  the server's time, ms since the epoch
--       3  permits left after this call; below zero after a lowered rate
--       4  ms until all permits are free; 0 if they are
--       5  rate   6  the length of the window, ms
--       7  0 and  8  0: no limit is stored, and there are no scores
--       9  ms until at least one more permit is free: as 4
--       10, 11, and so on in pairs, for each caller:
--          1 granted, 0 refused, 2 refused whenever it comes: more permits than the rate
--          ms until its permits are free, also for the callers that wait before it; 0 if granted
--       last but one  the label of the window that was counted;  last  0
--
-- The server's time chooses the window. If the stored label is newer, it stays the one that counts,
-- so labels never fall when a clock is wrong. If it is older, its window is over. Not safe to send
-- twice, as grants cannot be told apart. Redisson has no such operation.
--
--- @include lib/state.lua
--- @include lib/callers.lua
--- @include calendar/state.lua

local now, rate = clock(''), tonumber(ARGV[1])

-- The two windows of the call, and the one that contains the server's time.
local windows, chosen = {}, nil
for i = 2, 5, 3 do
  local first, last = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local window = { label = tonumber(ARGV[i]), ends = last, length = last - first }
  windows[#windows + 1] = window
  if not chosen and first <= now and now < last then
    chosen = window
  end
end
if not chosen then
  return { -5, now }
end

-- The window that counts.
local label, used = stored_use()
if not used then
  return { UNREADABLE }
end
local open, unknown = chosen, false
if not label or label < chosen.label then
  used = 0
elseif label == windows[2].label then
  open = windows[2]
elseif label > chosen.label then
  unknown = true
  open = { label = label, ends = now + math.max(life_of_stored(), 0), length = chosen.length }
end

local reply = { 1, now, 0, 0, rate, open.length, 0, 0, 0 }
local left, refused = decide(reply, rate - used, rate)
if left ~= rate - used then
  used = rate - left
  store_use(open.label, used, not unknown and open.ends - now)
end
for _, caller in ipairs(refused) do
  -- Later windows are assumed to be as long as this one.
  reply[caller.place] = open.ends - now + math.floor((caller.needs - 1) / rate) * open.length
end
reply[3] = left
reply[4] = used > 0 and open.ends - now or 0
reply[9] = reply[4]
reply[#reply + 1] = open.label
reply[#reply + 1] = 0
return reply
