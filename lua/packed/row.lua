-- Reads the row of a charge. A fragment of decide.lua.
--
--   B kind, and then
--     1 log        B limits, for each, the longest first: I6 interval, I7 rate
--     2 GCRA, 3 window   I6 interval, I7 rate
--     5 calendar   I7 rate, for two windows, one behind the other: I6 label, I6 start, I6 end
--     4 ban        I4 after, I6 within, I6 first, I6 longest: see ban.lua
--
-- The limits of a log are the list `ladder`. Of a calendar, `interval` is that of both windows, and
-- `open_label` the label of the window that is open now, nil if none is.

row, row_number, emission = rows and rows[number] or 16, number, nil
kind, limits = byte(arg, row, row + 1)
if kind == 1 then
  ladder = { unpack(sub('<I6I7I6I7I6I7I6I7', 1, 4 * limits + 1), arg, row + 2) }
  interval, rate = ladder[1], ladder[2]
elseif kind == 5 then
  local start, next_start
  rate, open_label, start, open_ends, next_label, next_start, next_ends =
    unpack('<I7I6I6I6I6I6I6', arg, row + 1)
  open_interval, next_interval = open_ends - start, next_ends - next_start
  interval = max(open_ends, next_ends) - min(start, next_start)
  if next_start <= now and now < next_ends and not (start <= now and now < open_ends) then
    open_label, open_ends, open_interval = next_label, next_ends, next_interval
  elseif now < start or open_ends <= now then
    open_label = nil
  end
else
  interval, rate = unpack('<I6I7', arg, row + 1)
end
