-- Writes each grant as a member of its own. Joined in front of acquire_list.lua and verbs.lua; with
-- slots, slots/entries.lua comes in between.
--
-- KEYS  those of the operation; a book is what the operation knows about one limiter

-- Returns whether the same call came before, so that its member exists.
local function came_before(book, member)
  return redis.call('ZSCORE', book.log, member)
end

-- Prepares to write grants, when the permits left are known. Returns false if the log cannot be
-- read.
local function begin_notes()
  return true
end

-- Writes a grant. Returns its score; nil if the same call wrote it before, and then takes nothing.
local function note(book, take, now)
  -- A lease's permits have a score of their own. NX: a call that was sent twice finds its member.
  local score = take.score or now
  if redis.call('ZADD', book.log, 'NX', score, take.member) == 0 then
    return nil
  end
  book.added[#book.added + 1] = take.member
  return score
end

-- Completes the written grants, before the log is read again.
local function end_notes() end

-- Removes the entry of an acquire, or replaces it by `rest`. Returns the permits that this frees;
-- nil if there is nothing to do.
local function take_back(log, taken, rest)
  local score = redis.call('ZSCORE', log, taken)
  if not score then
    return nil
  end
  local credited = permits_of(taken)
  -- Added before the other is removed: an empty log would vanish, and its TTL with it.
  if rest ~= '' and redis.call('ZADD', log, 'NX', math.floor(score), rest) == 1 then
    credited = credited - permits_of(rest)
  end
  redis.call('ZREM', log, taken)
  return credited
end
