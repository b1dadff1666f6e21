-- Lets the server's clock jump by ARGV[1] milliseconds, from the view of KEYS, or of the keys of
-- the pattern ARGV[2]: what they hold moves the other way, but for what counts by the calendar.
local by = ARGV[1] + 0
for _, key in ipairs(ARGV[2] and redis.call('KEYS', ARGV[2]) or KEYS) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  if kind == 'zset' then
    local log = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for at = 1, #log, 2 do redis.call('ZADD', key, log[at + 1] - by, log[at]) end
  elseif kind == 'string' then
    local held = redis.call('GET', key)
    local ends, level, forgotten, room = string.match(held, '^(%d+) (%d+) (%d+) (%d+)$')
    -- Moves a number of some bytes at a place.
    local function move(at, bytes, by)
      local form = '<I' .. bytes
      local moved = math.max(struct.unpack(form, held, at) - by, 0)
      held = string.sub(held, 1, at - 1) .. struct.pack(form, moved)
        .. string.sub(held, at + bytes)
    end
    local form, magic = string.byte(held, -2, -1)
    if form == 17 and magic == 183 then
      local windows = string.byte(held, -3)
      local stop = #held - 10 - 30 * windows
      for at = 1, stop, 22 do move(at + 16, 6, by) end
      for window = 1, windows do move(stop + 30 * window - 5, 6, by) end
      move(#held - 9, 6, by)
    elseif form == 18 and magic == 183 then
      move(14, 7, 1000 * by)
      move(28, 7, 1000 * by)
    elseif form == 19 and magic == 183 then
      move(1, 6, by)
      move(7, 6, by)
    elseif form == 20 and magic == 183 then
      local stop = #held - 47
      for at = 1, stop, 20 do move(at + 14, 6, by) end
      for _, at in ipairs({ 18, 24, 30, 36 }) do move(stop + at, 6, by) end
    elseif ends then
      held = string.format('%.0f %s %.0f %.0f', ends - by, level, forgotten - by, room - by)
    end
    redis.call('SET', key, held, 'KEEPTTL')
  end
  if left > 0 and left <= by then
    redis.call('DEL', key)
  elseif left > 0 then
    redis.call('PEXPIRE', key, left - by)
  end
end
