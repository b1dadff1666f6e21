-- Bans a caller by hand, ends its ban, or reads it.
--
-- KEYS  1  {N}:strikes   2  {N}:ban; see acquire.lua
-- ARGV  1  now, ms; empty for the server's clock   2  'ban', 'unban' or 'until'   3  ms, for 'ban'
-- Reply ban     1
--       unban   1 if there was a ban, else 0
--       until   1, when the ban ends, ms since the epoch; 0 for none
--
-- Redisson has no bans.

local call, now = redis.call, ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] .. string.sub('00000' .. time[2], -6, -4)
end
now = now + 0
local function whole(number)
  return string.format('%.0f', number)
end

local ends, level, forgotten, room =
  string.match(call('GET', KEYS[2]) or '', '^(%d+) (%d+) (%d+) (%d+)$')
if ARGV[2] == 'ban' then
  if not (forgotten and forgotten + 0 > now) then
    level = '0'
  end
  local until_then = whole(now + ARGV[3])
  local value = { until_then, level, whole(now + 2 * ARGV[3]), until_then }
  local life = 2 * ARGV[3] + (ARGV[1] == '' and 0 or 60000)
  call('SET', KEYS[2], table.concat(value, ' '), 'PX', whole(life))
  call('UNLINK', KEYS[1])
  return 1
end
local in_force = ends and ends + 0 > now
if ARGV[2] == 'unban' then
  call('UNLINK', KEYS[1], KEYS[2])
  return in_force and 1 or 0
end
-- See acquire.lua.
local late = in_force and ARGV[1] == '' and 2 * ends - forgotten - now or 0
if late > 0 then
  ends = whole(ends - late)
  local value = { ends, level, whole(forgotten - late), whole(room - late) }
  redis.pcall('SET', KEYS[2], table.concat(value, ' '), 'PX', whole(forgotten - late - now))
end
return { 1, in_force and ends + 0 or 0 }
