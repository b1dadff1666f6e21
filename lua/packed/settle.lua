-- Settles what the caller took: it lets the caller have so many permits, and frees or charges the
-- difference. `freed` is what is freed; below zero: charged; nil if more is charged as a grant by
-- the row. A fragment of prepare.lua.
--
-- In a log, the grant is found by the id of its caller. What is charged is a record of its own, of
-- 255 callers, which means that caller alone: so a settlement that is sent twice changes nothing.
-- In other states a grant is not found: there the call says what the caller took, and how the state
-- was after the grant. For GCRA, `mark` and `given` are tat and given back; for a window, `mark` is
-- its label. The greatest `mark` releases as many permits of any callers.

if of_kind == kind and kind == 1 then
  local has, added, charged, releases, found = nil, nil, 0, mark == MOST, {}
  local stop = log[#log]
  local kept = stop - #tail
  -- Where all is given back, what no longer lives makes no difference.
  local base = (permits == 0 or releases) and log[5] or 0
  if releases then
    -- Of all that live, the newest first.
    places = {}
    for at = #grants - 21, 1, -22 do
      places[#places + 1] = unpack('<I6', grants, at + 16) > now - log[2] and at or nil
    end
  end
  for _, at in ipairs(places) do
    local number, each = unpack('<BI6', grants, at + 9)
    if number == 255 and not releases and at > base then
      -- One that was given back is as none: windows may begin behind it.
      added, charged, found[#found + 1] = each > 0 and at or added, charged + each, at
    elseif at > base then
      has, found[#found + 1] = (has or 0) + each, at
    end
  end
  local rest, owed = max((has or 0) - permits, 0), max(permits - (has or was), 0)
  if releases then
    rest, owed = min(has or 0, was), 0
  end
  freed = rest + charged - owed
  -- The newest give first; what is released at large are the oldest.
  for number = #found, 1, -1 do
    local at = found[number]
    local each = unpack('<I6', grants, at + 10)
    local gives = at == added and charged - owed or min(each, rest)
    if gives ~= 0 then
      for w = 2, #log - 7, 5 do
        -- What is ahead is in no sum.
        if log[w + 3] < at and at < stop then
          log[w + 2] = min(max(log[w + 2] - gives, 0), MOST)
        end
      end
      grants = sub(grants, 1, at + 9) .. pack('<I6', each - gives) .. sub(grants, at + 16)
      kept, rest = min(kept, at - 1), at == added and rest or rest - gives
    end
  end
  tail, lent = sub(grants, kept + 1, stop), lent and sub(grants, stop + 1)
  if not added and owed > 0 then
    if lent then
      rare.join_ahead()
    end
    rare.append(pack('<c8BBI6I6', of, of_place, 255, owed, now))
  end
  if freed ~= 0 then
    text, offset = tail, 0
    if lents then
      lents[key] = lent ~= '' and lent or nil
    end
  end
elseif of_kind == kind and kind == 2 then
  texts, offsets, lives, logs = texts or {}, offsets or {}, lives or {}, logs or {}
  -- As much of a grant is freed as lies ahead still. What settlements freed since may have been
  -- before it, and moved it forward by as much.
  local backlog, emission = max(tat - micros, 0), ceil(of_interval * 1000 / of_rate)
  local more, moved = permits - was, 0
  freed = -more
  if more > 0 then
    -- A debt is at most as much as all permits.
    moved = -max(min(more * emission, 2 * emission * of_rate - backlog), 0)
  else
    local since = (back - mark_given) % 4503599627370496
    moved = max(min(freed * emission, mark - since - micros, backlog), 0)
    freed, back = ceil(moved / emission), (back + moved) % 4503599627370496
  end
  if freed ~= 0 then
    tat, is_moved = micros + backlog - moved, true
  end
elseif of_kind == kind and (of_label == mark or mark == MOST) and now < of_ends then
  local used = min(max(of_used + permits - was, 0), MOST)
  if used ~= of_used then
    text, offset = pack('<I7', used) .. sub(page, 20), 12
  end
  freed = of_used - used
elseif permits <= was or kind == 5 and of_kind == 5
  and (of_label > mark or of_label < mark and now < of_ends) then
  -- What was taken in another window of a calendar counts no more.
  freed = 0
end
