-- Takes permits of limiters, some of them with slots: acquire_list.lua, which follows, with another
-- way to write a grant.
--
-- KEYS  those of acquire_list.lua
-- ARGV  those of acquire_list.lua, and behind them for each limiter the number of slots of its
--       interval, 10 .. 10000, or empty if each grant is a member of its own. With slots, only the
--       id of a caller's member is used, when the slot's member is full or cannot be found
-- Reply that of acquire_list.lua. A slot that is not over counts as if all of it had been granted
--       at its end
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0 on the same state, which takes a slot's member for one
-- large grant. Not safe to send twice: the grants of a slot look alike.

local slots = {}
for place = #KEYS / 5, 1, -1 do
  slots[place] = tonumber(table.remove(ARGV))
end

local note_entry = note

local function came_before()
  return false
end

local count_entries = single_entries

local function single_entries(book, place)
  return not slots[place] and count_entries(book)
end

local function begin_notes(book, place, now)
  book.slots = slots[place]
  -- With nothing left, there will be no grant.
  return not book.slots or book.value <= 0 or open_slot(book, book.slots, now)
end

local function note(book, take, now)
  if book.slots then
    return note_in_slot(book, take.permits, string.sub(take.member, 2, 17))
  end
  return note_entry(book, take, now)
end

local function end_notes(book)
  if book.noted then
    write_slot(book)
  end
end

