-- Begins the function `decide`, whose body is the script that follows. The script that calls it has
-- the `end`.
--
-- KEYS and ARGV are those of one call.

local function decide(KEYS, ARGV)
