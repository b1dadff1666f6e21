-- Decides a charge by a log: a record lives by a limit for its interval, and the permits of those
-- that live are in use. A fragment of request.lua.
--
--   records, oldest first, 22 bytes each, one for each grant
--     c8 id, B place, B callers: 1; 0 for a slot, 255 for a debt, I6 permits, I6 time, ms
--   ahead, as the records: permits that a process fetched ahead of their time
--   windows, 30 bytes each, one for each limit, the longest first
--     I6 interval, I7 rate, I7 used, I4 start, I6 seen
--   I6 ends    when the key expires, ms by the server's clock
--   B number of ahead, B number of windows, B kind, B magic
--
-- Several limits share the records: each has a window, which begins at the offset `start`, with
-- the first record that may live by its interval and has permits. `used` is the sum from there on,
-- `seen` the time of the last grant by it. A request counts by the windows of its own limits, and
-- moves their starts if it takes anything.
--
-- In memory, `log` is the list of the numbers of a log: the time of its last record; for each
-- window, from the place `w` on, interval, rate, used, start, seen; ends; the last four bytes as
-- one number, without ahead; and the offset of the end of the records. The last of these are not
-- written yet, and are `tail`. `lent` is what is ahead, nil for nothing.

if of_kind ~= 1 or log[1] <= now - log[2] and not (lent and rare.ahead(now - log[2])) then
  -- Nothing lives: another log begins, with what a state of another kind has in use.
  local used = of_kind > 1 and min(rare.use(), rate, LATEST) or 0
  tail = used > 0 and string.rep('\0', 10) .. pack('<I6I6', used, now) or ''
  lent, from = nil, MOST
  log = { used > 0 and now or 0 }
  for limit = 1, limits do
    local w = 5 * limit - 3
    log[w], log[w + 1], log[w + 2], log[w + 3], log[w + 4] = ladder[2 * limit - 1], 0, used, 0, 0
  end
  log[5 * limits + 2], log[5 * limits + 3], log[5 * limits + 4] = 0, LOG + 256 * limits, #tail
elseif not fits then
  rare.add_windows()
end
local last, newest, taken, wait_here = #log, log[1], 0, 0
local stop = log[last]
local time_of_grant = newest > now and newest or now
granted = given or callers

-- If a limit has room for fewer, all are gone through again, as the others grant no more either.
local limit, w = 1, 2
repeat
  local its_interval, its_rate = ladder[2 * limit - 1], ladder[2 * limit]
  while log[w] ~= its_interval do
    w = w + 5
  end
  local expired = now - its_interval
  local start, oldest, gone =
    walk(name, 22, tail, page, from, stop, log[w + 3], expired, MOST)
  local used = max(log[w + 2] - gone, 0)
  local room = its_rate - used
  if lent then
    local first, sum = rare.ahead(expired)
    room, oldest = room - sum, first and oldest and min(first, oldest) or first or oldest
  end
  local is_less = granted > 0 and room < granted * permits and not given
  if is_less then
    granted = room < permits and 0 or floor(room / permits)
  end
  if is_less and limit > 1 then
    limit, w, left, taken, wait_here = 0, 2, nil, 0, 0
  elseif not is_dry then
    if takes and granted > 0 then
      taken = granted * permits
      log[w + 1], log[w + 2], log[w + 3], log[w + 4] = its_rate, used, start, now
      room = room - taken
      oldest = oldest and oldest < time_of_grant and oldest or time_of_grant
    end
    -- What the reply says: permits left by the limit that has the fewest, when one more of it is
    -- free, and when all limits have room for one caller more.
    local free = oldest and oldest - expired or its_interval
    if not left or room < left or room == left and free < next then
      left, next = room, free
    end
    local its_wait = 0
    if permits > its_rate then
      its_wait = MOST
    elseif granted < callers and room < permits then
      local offset, time
      if lent then
        time = rare.time_of_room(start, expired, permits - room)
      else
        offset, time = walk(name, 22, tail, page, from, stop, start, LATEST, permits - room)
      end
      its_wait = (time or taken > 0 and time_of_grant or newest) - expired
    end
    wait_here = its_wait > wait_here and its_wait or wait_here
    if limits > 1 then
      each = each or { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
      each[3 * limit - 2], each[3 * limit - 1], each[3 * limit] = room, free, its_wait
    end
  end
  limit = limit + 1
until limit > limits

local is_joined
if taken > 0 then
  if lent then
    is_joined = rare.join_ahead()
  elseif lents then
    lents[key] = nil
  end
  if granted > 1 then
    local trailer = ''
    --- @include records.lua
  else
    -- What is charged by a settlement is a record of 255 callers: see settle.lua.
    text = pack('<c8BBI6I6', of, of_place, given and 255 or 1, taken, time_of_grant)
  end
  tail = tail .. text
  log[1], log[last] = time_of_grant, log[last] + #text
  for w = 2, last - 7, 5 do
    local used = log[w + 2] + taken
    log[w + 2] = used < MOST and used or MOST
  end
  text, offset, newest = tail, 0, time_of_grant
end
if granted < callers then
  newest = lent and max(newest, (select(3, rare.ahead(0)))) or newest
  told, third = -wait_here, max(newest + interval - now, 0)
end
if taken > 0 and (is_joined or lent and granted < callers or ahead and time_of_grant > now) then
  -- What has become of it is counted once more, as if the call only asked.
  given, takes, is_again, has_fetched = granted, false, true, false
-- It is not before this grant, so that of what was counted only the permits left change. Where
-- that is told by another count, `has_fetched` is false.
elseif ahead and (taken > 0 or has_fetched == false) and granted == callers and left >= ahead
  and not (lent and #lent == 1408) then
  lents[key] = (lent or '') .. pack('<c8BBI6I6', id_ahead, 0, 1, ahead, now + lead)
  leads[key], is_again, has_fetched = max(leads[key] or 0, lead), has_fetched == false, true
  left = left - ahead
  for limit = 1, each and limits or 0 do
    each[3 * limit - 2] = each[3 * limit - 2] - ahead
  end
end
