-- Settles what one acquire took in a slot: settle.lua, which follows, with another way to find it
-- and to charge more.
--
-- KEYS  1-5, see lib/state.lua
-- ARGV  1-7, those of settle.lua: the permits of the members count, and the id when the slot's
--       member is full or cannot be found
--       8  the number of slots of an interval, 10 .. 10000
--       9  the end of the slot of the acquire; not used to charge more, which counts from now on
-- Reply that of settle.lua
--
-- Redisson has no such operation, see there. Not safe to send twice: what is left of a slot is not
-- distinguished from what was there.

local function begin_notes(book, _, now)
  return open_slot(book, tonumber(ARGV[8]), now)
end

local function note(book, take)
  return note_in_slot(book, take.permits, string.sub(take.member, 2, 17))
end

local function end_notes(book)
  write_slot(book)
end

local function take_back(log, taken, rest)
  local book = { log = log, ends = tonumber(ARGV[9]), added = {}, removed = {} }
  local member = member_of_slot(log, book.ends)
  if not member then
    return nil
  end
  local held = permits_of(member)
  -- `release` may have taken back by number what was granted here.
  local credited = math.min(held, permits_of(taken) - (rest ~= '' and permits_of(rest) or 0))
  if credited < held and not add_member(book, id_of_slot(book.ends), held - credited) then
    add_own_member(book, string.sub(taken, 2, 17), held - credited)
  end
  remove_member(book, member)
  return credited
end

