-- Reads what stands behind the records of a log of one limit, with nothing ahead: log.lua describes
-- the bytes. `is_usual` says whether it is such a log, and no record is later than now. The log has
-- `whole` bytes, if that is known. A fragment of usual.lua and settle_usual.lua.

-- What is too short is read as a text that is no log.
local bytes, stop = #page, 0
local behind_all = bytes > 61 and page or 'as long as a limit and what is behind it, 46 bytes'
local newest, its_interval, its_rate, used, start, seen, ends, form =
  unpack('<I6I6I7I7I4I6I6I4', behind_all, #behind_all - 45)
if form == LOG + 256 and newest <= now then
  stop = (whole or bytes < 260 and bytes or call('STRLEN', name)) - 40
  is_usual = stop > 21 and stop % 22 == 0 and start % 22 == 0 and start <= stop
end
