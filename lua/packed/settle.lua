-- Makes the function that settles what a caller took: it lets the caller have so many permits, and
-- frees or charges the difference. A fragment of prepare.lua.
--
-- In a log, the grant is found by the id of its caller. What is charged is a record of its own, of
-- 255 callers, which means that caller alone: so a settlement that is sent twice changes nothing.
-- In other states a grant is not found: there the call says what the caller took, and how the state
-- was after the grant. For GCRA, `mark` and `given` are tat and given back; for a window, `mark` is
-- its label. The greatest `mark` releases as many permits of any callers.

-- Returns the places of all records that live, the newest first.
local function living(text)
  local found = {}
  for at = #text - 21, log[5] + 1, -22 do
    found[#found + 1] = unpack('<I6', text, at + 16) > now - log[2] and at or nil
  end
  return found
end

local function settle_log(permits, was, mark)
  local has, added, charged, releases = nil, nil, 0, mark == MOST
  -- Where all is given back, what no longer lives makes no difference.
  local base, written = permits == 0 and not releases and log[5] or 0, log[#log] - #tail
  local stop, kept = log[#log] - base, max(written - base, 0)
  local before = sub(tail, 1, max(base - written, 0))
  local text = rest_of(name, tail, log[#log], base) .. (lent or '')
  local places = releases and living(text) or rare.places(text, 22, true)
  for _, at in ipairs(places) do
    local number, each = unpack('<BI6', text, at + 9)
    if number == 255 and not releases then
      -- One that was given back is as none: windows may begin behind it.
      added, charged = each > 0 and at or added, charged + each
    else
      has = (has or 0) + each
    end
  end
  local rest, owed = max((has or 0) - permits, 0), max(permits - (has or was), 0)
  if releases then
    rest, owed = min(has or 0, was), 0
  end
  local freed = rest + charged - owed
  -- The newest give first; what is released at large are the oldest.
  for number = #places, 1, -1 do
    local at = places[number]
    local each = unpack('<I6', text, at + 10)
    local gives = at == added and charged - owed or min(each, rest)
    if gives ~= 0 then
      for w = 2, #log - 7, 5 do
        -- What is ahead is in no sum.
        if log[w + 3] < at + base and at < stop then
          log[w + 2] = min(max(log[w + 2] - gives, 0), MOST)
        end
      end
      text = sub(text, 1, at + 9) .. pack('<I6', each - gives) .. sub(text, at + 16)
      kept, rest = min(kept, at - 1), at == added and rest or rest - gives
    end
  end
  tail, lent = before .. sub(text, kept + 1, stop), sub(text, stop + 1)
  if not added and owed > 0 then
    rare.join_ahead()
    rare.append(pack('<c8BBI6I6', of, of_place, 255, owed, now))
  end
  if freed ~= 0 then
    logs[key], texts[key], offsets[key], lents[key] = log, tail, 0, lent ~= '' and lent or nil
  end
  return freed
end

-- As much of a grant is freed as lies ahead still. What settlements freed since may have been
-- before it, and moved it forward by as much.
local function settle_gcra(more, mark, given)
  local backlog, emission = max(tat - micros, 0), ceil(of_interval * 1000 / of_rate)
  local moved, freed = 0, -more
  if more > 0 then
    -- A debt is at most as much as all permits.
    moved = -max(min(more * emission, 2 * emission * of_rate - backlog), 0)
  else
    local since = (back - given) % 4503599627370496
    moved = max(min(freed * emission, mark - since - micros, backlog), 0)
    freed, back = ceil(moved / emission), (back + moved) % 4503599627370496
  end
  if freed ~= 0 then
    rare.put_tat(micros + backlog - moved)
  end
  return freed
end

-- Settles a charge. Returns how many permits are freed; below zero: charged; nil if more is charged
-- as a grant by the row. What was taken in another window of a calendar counts no more.
function settle(permits, was, mark, given)
  if of_kind == kind and kind == 1 then
    return settle_log(permits, was, mark)
  elseif of_kind == kind and kind == 2 then
    return settle_gcra(permits - was, mark, given)
  elseif of_kind == kind and (of_label == mark or mark == MOST) and now < of_ends then
    local used = min(max(of_used + permits - was, 0), MOST)
    if used ~= of_used then
      texts[key], offsets[key] = sub(page, 1, 12) .. pack('<I7', used) .. sub(page, 20), 0
    end
    return of_used - used
  end
  local is_over = kind == 5 and of_kind == 5
    and (of_label > mark or of_label < mark and now < of_ends)
  return (permits <= was or is_over) and 0 or nil
end
