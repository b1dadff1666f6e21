-- Begins a function, whose body is the script that follows. A script that calls it ends it.
--
-- KEYS and ARGV are those of one call.

local function decide(KEYS, ARGV)
