-- Takes permits of one limiter, or of several, all or none, for one caller or several, or reports
-- when they will be free.
--
-- KEYS  1-5 of each limiter, one after the other, see lib/state.lua
-- ARGV  1  now in ms since the epoch, or empty for the server's clock
--       2  '1' when the permits left are wanted exactly, else '0'
--       for each limiter five:
--          whose limit counts: 'redis' the stored one; 'init' the stored one, else the one given;
--          'code' the one given, 'keep' the same but a differing stored one is left for now
--          rate; interval, ms; type; keepAliveTime, ms; all empty with 'redis'
--       for each caller, in the order of arrival:
--          '1' if it waits in the queue, else '0'
--          for each limiter three: permits to take, 1 .. 2^32 - 1
--          the caller's own member: 0x10, 16 bytes never used before, permits as 32 bits
--          little-endian
--          '1' for a shadow rule: taken if there is room, and no reason to refuse if there is none;
--          '0' if not; '+' and ms for a use later, so many ms from now at the latest: the entry is
--          scored then, at most a tenth of the interval ahead
-- Reply 1  1; negative: an error, alone in the reply; nothing was taken then
--       2  the time that was used, ms since the epoch
--       for each limiter seven:
--          permits left after this call; a lower bound unless wanted exactly or refused for lack of
--          them
--          ms until all permits are free, or, unless wanted exactly, the interval if some are not
--          rate and interval, ms, in force
--          0 nothing, 1 the limit was created, 2 the limit was rewritten; of several limiters, none
--          is created by a call that takes nothing of it
--          scores that were set back because they came from a wrong clock
--          ms until at least one more permit is free; 0 if all are, or if that is not known: in
--          debt, and if it is not wanted exactly
--       for each caller, for each limiter two:
--          1 has room, and it was taken if all have; 0 has none; 2 never has as much
--          ms until it has room, also for the callers that wait before it; 0 if it has
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0 on the same state, safe to send twice, with an exact
-- wait and bounded work. Redisson has no operation on several limiters: two tryAcquire take from
-- the first what the second refuses. Each caller is granted whole or not at all. A caller that
-- waits in the queue and does not fit blocks those behind it; a caller that does not wait takes
-- what is left.
--
--- @include lib/state.lua
--- @include sliding_log/state.lua
--- @include sliding_log/entries.lua
--- @include slots/entries.lua, with slots

local now = clock(ARGV[1])
local exact = ARGV[2] == '1'
local limiters = math.floor(#KEYS / 5)
local width = 1 + 3 * limiters
local callers = math.floor((#ARGV - 2 - 5 * limiters) / width)

-- The limits in force. Nothing is written before all of them are known.

local books, anything = {}, false
for place = 1, limiters do
  local behind = 5 * (place - 1)
  local book, unreadable = read_book(behind, ARGV[behind + 3], behind + 3)
  if not book then
    return unreadable
  end
  -- A hash of other fields belongs to another program.
  book.absent = limiters > 1 and book.changed == 1 and redis.call('EXISTS', book.hash) == 0
  book.stored = value_of(book.value_key)
  book.value = book.stored
  if limiters > 1 then
    -- An error where that is no log: before anything is written for another limiter.
    redis.call('ZSCORE', book.log, '')
  end
  if not book.same_interval then
    book.value = nil
  elseif book.value and book.changed == 2 then
    -- O(1), and a lowered rate holds at once: value may fall below zero.
    book.value = book.value + book.rate - book.old_rate
  end
  book.wanted, book.in_line, book.unmet, book.added, book.repaired = 0, 0, {}, {}, 0
  anything = anything or book.changed > 0
  books[place] = book
end

-- The demands.

local asks = {}
for index = 1, callers do
  local at = 2 + 5 * limiters + width * (index - 1) + 1
  local ask = { waits = ARGV[at] == '1', granted = false, takes = {} }
  local possible, held = true, false
  for place = 1, limiters do
    local book, of = books[place], at + 3 * (place - 1)
    local take = { permits = tonumber(ARGV[of + 1]), member = ARGV[of + 2],
      shadow = ARGV[of + 3] == '1' }
    take.score = now
    if string.sub(ARGV[of + 3], 1, 1) == '+' then
      take.score = now + math.min(tonumber(ARGV[of + 3]), ahead_of(book.interval))
    end
    take.possible = take.permits <= book.rate
    possible = possible and (take.possible or take.shadow)
    ask.takes[place] = take
  end
  for place = 1, limiters do
    local take = ask.takes[place]
    if not (possible and take.possible) then
      take.held = came_before(books[place], take.member)
      held = held or take.held
    end
  end
  -- More than the rate only if it was granted before the limit was lowered.
  ask.possible, ask.hopeful = possible, possible or held
  if ask.hopeful then
    anything = true
    for place = 1, limiters do
      local take = ask.takes[place]
      if take.possible or take.held then
        books[place].wanted = books[place].wanted + take.permits
      end
    end
  end
  asks[index] = ask
end

-- The permits left.

-- For errors that are found only here: a log that cannot be read. Swept entries stay removed.
local function abandon()
  for place = 1, limiters do
    local book = books[place]
    for _, member in ipairs(book.removed or {}) do
      redis.call('ZADD', book.log, book.ends, member)
    end
    for _, member in ipairs(book.added) do
      redis.call('ZREM', book.log, member)
    end
    if book.untouched then
      redis.call('SET', book.value_key, book.untouched, 'KEEPTTL')
    end
  end
  return { FOREIGN_MEMBER }
end

if anything then
  for place = 1, limiters do
    local book = books[place]
    agree(book, now, string.sub(asks[1].takes[place].member, 2, 17))
    if not book.value then
      return abandon()
    end
    if book.changed > 0 then
      -- Not earlier: limit and value change together or not at all.
      write_limit(book.hash, book.limit)
    end
    if book.newest and (exact or book.value < book.wanted) then
      local budget = book.wanted + math.max(0, -book.value) + 1
      if exact then
        budget = math.max(budget, book.wanted + PAGE)
      end
      local readable = sweep(book, now, exact and math.huge or book.wanted, budget)
      book.untouched = book.value
      if not readable then
        return abandon()
      end
    end
    -- Neither value nor log is new, and the hash is shared with no other pair of them.
    book.old = book.stored and book.changed == 0 and book.newest and not book.restored
      and book.limit[3] ~= '1'
    local prepared = begin_notes(book, place, now)
    book.untouched = book.value
    if not prepared then
      return abandon()
    end
  end
end

-- The decisions.

local closed = false
for index = 1, anything and callers or 0 do
  local ask = asks[index]
  for place = 1, limiters do
    -- The same call came before, and took what it takes.
    ask.granted = ask.granted or ask.hopeful and came_before(books[place], ask.takes[place].member)
  end
  if ask.possible and not ask.granted then
    local fits = not (closed and ask.waits)
    for place = 1, limiters do
      local take = ask.takes[place]
      fits = fits and (take.shadow or books[place].value >= take.permits)
    end
    for place = 1, limiters do
      local book, take = books[place], ask.takes[place]
      if fits and book.value >= take.permits then
        local score = note(book, take, now)
        if score then
          book.value = book.value - take.permits
          book.newest = math.max(book.newest or score, score)
        end
      elseif take.possible then
        take.needs = take.permits
        if ask.waits and not take.shadow then
          take.needs = take.needs + book.in_line
          book.in_line = take.needs
        end
        book.unmet[#book.unmet + 1] = take
      end
    end
    closed = closed or (ask.waits and not fits)
  end
end

-- The refused callers and their waits. This comes after all grants: a caller refused by another
-- limiter leaves its room to those behind it. Walk from the oldest entry to those whose expiry
-- makes enough room.

for place = 1, limiters do
  local book = books[place]
  end_notes(book)
  local refused = {}
  for _, take in ipairs(book.unmet) do
    if take.needs > book.value then
      take.refused = true
      -- More than the rate is never free at once: each further rate follows an interval later.
      local rounds = math.floor((take.needs - 1) / book.rate)
      take.needs, take.later = take.needs - rounds * book.rate, rounds * book.interval
      refused[#refused + 1] = take
    end
  end
  if ARGV[1] == '' and (exact or #refused > 0) then
    -- Before any wait is computed. A caller's clock proves nothing: it may be slow.
    book.repaired = set_back(book, now)
  end
  if #refused > 0 then
    table.sort(refused, function(a, b) return a.needs < b.needs end)
    local page, at, start = {}, 1, 0
    -- What is left is free now.
    local freed, due = book.value, now - book.interval
    for _, take in ipairs(refused) do
      while freed < take.needs do
        if at > #page then
          local size = math.min(take.needs - freed, PAGE)
          page, at = redis.call('ZRANGE', book.log, start, start + size - 1, 'WITHSCORES'), 1
          start = start + size
          if #page == 0 then
            -- The log has fewer permits than are missing: value and log agree again when its last
            -- entry expires.
            break
          end
        end
        local held = permits_of(page[at])
        if not held then
          return abandon()
        end
        due = math.floor(page[at + 1])
        freed = freed + held
        at = at + 2
      end
      take.wait = due + book.interval - now + take.later
    end
  end
  if exact and book.newest and book.value >= 0 and #refused < callers then
    -- In debt, one more is not free yet; after a large expiry, what is left is not all.
    local oldest = redis.call('ZRANGE', book.log, 0, 0, 'WITHSCORES')[2]
    book.next = oldest and math.max(0, math.floor(oldest) + book.interval - now)
  end
end

-- The stored state, and the reply.

local reply = { 1, now }
for place = 1, limiters do
  local book = books[place]
  if book.absent and not book.stored and not book.newest and book.value == book.rate then
    -- There was no limit, and another limiter refuses: it stays so. Otherwise a caller over the
    -- limit of its address could fill the server with limiters of invented names.
    redis.call('UNLINK', book.hash)
    book.changed = 0
  elseif anything then
    write_value(book.value_key, book.stored, book.value)
    keep_alive(book.hash, book.value_key, book.log, book.keep_alive_time, book.interval,
      book.changed == 1, book.old)
  end
  reply[#reply + 1] = anything and book.value or 0
  reply[#reply + 1] = book.newest
    and (exact and math.max(0, book.newest + book.interval - now) or book.interval) or 0
  reply[#reply + 1] = book.rate
  reply[#reply + 1] = book.interval
  reply[#reply + 1] = book.changed
  reply[#reply + 1] = book.repaired
  reply[#reply + 1] = book.next or 0
end
for index = 1, callers do
  local ask = asks[index]
  for place = 1, limiters do
    local take = ask.takes[place]
    local status = GRANTED
    if not ask.granted and not take.possible then
      status = ABOVE_RATE
    elseif take.refused then
      status = REFUSED
    end
    reply[#reply + 1] = status
    reply[#reply + 1] = take.wait or 0
  end
end
return reply
