-- How a grant is noted: as one member of the caller's own. Joined at compile time in front of acquire_list.lua and settle.lua,
-- and before what notes otherwise.
--
-- KEYS  those of the operation; a book is what that knows of one limiter

-- Whether the same call came before: then its member is there.
local function came_before(book, member)
  return redis.call('ZSCORE', book.log, member)
end

-- How many entries there are, if the books agree by their number, as they mostly do: where each holds one permit.
local function single_entries(book)
  local entries = redis.call('ZCARD', book.log)
  return book.value + entries == book.rate and entries
end

-- Prepares to note, once the permits left are known. False if the log cannot be read.
local function begin_notes()
  return true
end

-- Notes a grant. Its score; nil if it was noted before, and nothing more is taken.
local function note(book, take, now)
  -- What is taken ahead has a score of its own. NX: a call that was sent twice finds its member.
  local score = take.score or now
  if redis.call('ZADD', book.log, 'NX', score, take.member) == 0 then
    return nil
  end
  book.added[#book.added + 1] = take.member
  return score
end

-- Writes what was noted, before anybody reads the log again.
local function end_notes() end

-- Removes what an acquire was noted by, or leaves `rest` of it. How many permits that makes; nil if there is nothing to do.
local function take_back(log, taken, rest)
  local score = redis.call('ZSCORE', log, taken)
  if not score then
    return nil
  end
  local credited = permits_of(taken)
  -- In this order, or the log could be gone for a moment, and its TTL with it.
  if rest ~= '' and redis.call('ZADD', log, 'NX', score, rest) == 1 then
    credited = credited - permits_of(rest)
  end
  redis.call('ZREM', log, taken)
  return credited
end
