-- Writes grants in slots: all grants in one slot, of all callers and processes, are one member,
-- scored at the slot's end. So a grant counts for an interval from the end of its slot on, which is
-- less than a slot longer than from the grant itself. Joined behind sliding_log/entries.lua, whose
-- functions these replace.
--
-- KEYS  as in lib/state.lua; a book is what an operation knows about one limiter: log, value, rate,
--       interval, newest, and the members that it has added and removed
-- ARGV  at the end, for each limiter: the number of slots of its interval, 10 .. 10000, or empty if
--       each grant is a member of its own. With slots, only the id of a caller's member is used,
--       when the slot's member is full or cannot be found
--
-- To Redisson, a slot's member is one large grant. A slot that is not over counts as if all of it
-- had been granted at its end. Not safe to send twice: the grants of a slot cannot be told apart.

local slots = {}
for place = math.floor(#KEYS / 5), 1, -1 do
  slots[place] = tonumber(table.remove(ARGV))
end

-- The most that a member can hold.
local FULL = 4294967295

-- Returns the id of a slot's member, without the permits. Another slot with as many permits needs
-- another member.
local function id_of_slot(ends)
  return 'slot:\0\0\0' .. struct.pack('>I8', ends)
end

-- Returns the slot's member; nil if there is none, or if too many others with the same score come
-- before it.
local function member_of_slot(log, ends)
  local id = id_of_slot(ends)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', log, ends, ends, 'LIMIT', 0, PAGE)) do
    if #member == 21 and string.sub(member, 2, 17) == id then
      return member
    end
  end
  return nil
end

local function add_member(book, id, permits)
  local member = struct.pack('<Bc0I4', 16, id, permits)
  if redis.call('ZADD', book.log, 'NX', book.ends, member) == 0 then
    return nil
  end
  book.added[#book.added + 1] = member
  return member
end

-- Adds a member under a caller's id or, if that has one already because the call came twice, under
-- an id derived from it: what value counts as taken must be in the log.
local function add_own_member(book, id, permits)
  for _ = 0, 255 do
    if add_member(book, id, permits) then
      return
    end
    id = string.sub(id, 1, 15) .. string.char((string.byte(id, 16) + 1) % 256)
  end
end

local function remove_member(book, member)
  redis.call('ZREM', book.log, member)
  book.removed[#book.removed + 1] = member
end

-- Writes the new grants of the slot: one member with the sum replaces the old member. It is added
-- before the old one is removed: an empty log would vanish, and its TTL with it.
local function write_slot(book)
  local held = book.slot and permits_of(book.slot) or 0
  if held + book.noted > FULL then
    -- The full member gets a unique id, so that the next one can have the slot's id.
    add_own_member(book, book.own_id, held)
    remove_member(book, book.slot)
    book.slot, held = nil, 0
  end
  local sum = add_member(book, id_of_slot(book.ends), held + book.noted)
  if not sum then
    -- Such a member exists with another score, which was reset.
    add_own_member(book, book.own_id, book.noted)
  else
    if book.slot then
      remove_member(book, book.slot)
    end
    book.slot = sum
  end
  book.noted = 0
end

local note_entry = note

local function came_before()
  return false
end

-- Finds the slot that contains `now`; all callers with the same number of slots agree on it, as
-- they are counted from the epoch. If the slot has no member yet, up to two expired members are
-- removed: a limiter that is never exhausted would otherwise keep them all.
local function begin_notes(book, place, now, debt)
  book.slots = slots[place]
  -- If nothing is left, nothing will be granted.
  if not book.slots or book.value <= 0 and not debt then
    return true
  end
  book.ends = now + -now % math.ceil(book.interval / book.slots)
  book.noted, book.removed = 0, {}
  book.slot = book.newest and member_of_slot(book.log, book.ends)
  return book.slot or not book.newest or sweep(book, now, math.huge, 2)
end

local function note(book, take, now)
  if not book.slots then
    return note_entry(book, take, now)
  end
  if book.noted + take.permits > FULL then
    write_slot(book)
  end
  book.noted, book.own_id = book.noted + take.permits, string.sub(take.member, 2, 17)
  return book.ends
end

local function end_notes(book)
  if book.noted and book.noted > 0 then
    write_slot(book)
  end
end

local function take_back(log, taken, rest, ends)
  local book = { log = log, ends = tonumber(ends), added = {}, removed = {} }
  local member = member_of_slot(log, book.ends)
  if not member then
    return nil
  end
  local held = permits_of(member)
  -- `release` may have released some of the permits that were granted here.
  local credited = math.min(held, permits_of(taken) - (rest ~= '' and permits_of(rest) or 0))
  if credited < held and not add_member(book, id_of_slot(book.ends), held - credited) then
    add_own_member(book, string.sub(taken, 2, 17), held - credited)
  end
  remove_member(book, member)
  return credited
end
