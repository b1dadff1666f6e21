-- Takes permits of limiters of which some note their grants in slots: acquire_list.lua, which follows, with another way to
-- note a grant.
--
-- KEYS  those of acquire_list.lua
-- ARGV  those of acquire_list.lua, and behind them for each limiter into how many slots its interval is divided, 10 .. 10000,
--       or empty where each grant is a member of its own. What is written in slots takes of a caller's member its id only,
--       where the slot's member is full or cannot be found
-- Reply that of acquire_list.lua. A slot that is not over counts as if all of it had been granted at its end
--
-- RRateLimiter.tryAcquire of Redisson 4.7.0 on the same state, which cannot tell a slot's member from that of one large grant.
-- Not safe to send again: nothing tells one grant of a slot from another.

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
  -- Where nothing is left, nothing will be noted.
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

