-- Tries whether a user may run the commands of the other scripts, on an unused limiter and without
-- a lasting change.
--
-- KEYS  those of a limiter in one format, of a name made for this call
-- ARGV  1  1 to try the commands, or empty     2..  texts of scripts
-- Reply 1  for each command its name and its refusal, empty if it was not refused
--       2  for each text the error of its compilation, empty if there is none
--
-- Redisson has no such operation. A server checks permissions before arguments, so each command
-- finds nothing to change, or is refused for its arguments. This shows a user's permissions inside
-- scripts on any version of the server, and the user needs no permission to read them.

local key = KEYS[1]

local TRIED = {
  { 'TIME' }, { 'EXISTS', key }, { 'GET', key }, { 'GETRANGE', key, '0', '0' },
  { 'STRLEN', key }, { 'PTTL', key }, { 'HMGET', key, 'rate' },
  { 'ZCARD', key },
  { 'ZCOUNT', key, '0', '0' }, { 'ZRANGE', key, '0', '0' }, { 'ZRANGEBYSCORE', key, '0', '0' },
  { 'ZSCORE', key, 'x' },
  -- The keys do not exist, so nothing changes.
  { 'UNLINK', key }, { 'DEL', key }, { 'RENAME', key, key }, { 'PERSIST', key },
  { 'PEXPIRE', key, '1' },
  { 'SET', key, '0', 'XX' }, { 'ZADD', key, 'XX', '0', 'x' }, { 'ZREM', key, 'x' },
  { 'ZREMRANGEBYRANK', key, '0', '0' }, { 'ZREMRANGEBYSCORE', key, '0', '0' },
  -- An argument is missing, no number, or below zero.
  { 'HSET', key, 'rate', '0', 'interval' }, { 'INCRBY', key, 'x' }, { 'SETRANGE', key, '-1', 'x' },
}

-- Other versions of Lua have these elsewhere, and Redis makes it an error to name a global that
-- does not exist.
local unpack = rawget(_G, 'unpack') or table.unpack
local compile = rawget(_G, 'loadstring') or load

local tried, removes = {}, false
local function try(command)
  local reply = redis.pcall(unpack(command))
  local refused = type(reply) == 'table' and reply.err or ''
  tried[#tried + 1] = { command[1], refused }
  return refused == ''
end

if ARGV[1] == '1' then
  for _, command in ipairs(TRIED) do
    local allowed = try(command)
    removes = removes or allowed and command[1] == 'UNLINK'
  end
  -- Only this command cannot be tried without an effect. The key that it creates is deleted before
  -- any client can see it.
  if removes and try({ 'HSETNX', key, 'rate', '0' }) then
    redis.call('UNLINK', key)
  end
end

local compiled = {}
for place = 2, #ARGV do
  local chunk, why = compile(ARGV[place])
  compiled[place - 1] = chunk and '' or why
end
return { tried, compiled }
