-- Reads the row of a charge. A fragment of simple.lua and request.lua.
--
--   B kind, and then
--     1 log        B limits, for each, the longest first: I6 interval, I7 rate
--     2 GCRA, 3 window   I6 interval, I7 rate
--     5 calendar   I7 rate, for two windows, one behind the other: I6 label, I6 start, I6 end
--     4 ban        I4 after, I6 within, I6 first, I6 longest: see ban.lua
--
-- Of several limits, `interval` and `rate` are the longest; state.lua makes the list `ladder` of
-- all. Of a calendar, `interval` is that of both windows, and `open_label` the label of the window
-- that is open now, nil if none is.

row = rows and rows[number] or 16
row_number = number
emission = nil
ladder = nil
kind, limits, interval, rate = unpack('<BBI6I7', arg, row)
if kind == 5 then
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
elseif kind > 1 then
  interval, rate = unpack('<I6I7', arg, row + 1)
end
