-- Begins a function that decides as the script that follows; batch.lua ends it.

local function decide(KEYS, ARGV)
