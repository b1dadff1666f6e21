-- Makes the function that settles what a caller took: it lets the caller have so many permits, and
-- frees or charges the difference. A fragment of prepare.lua.
--
-- In a log, the grant is found by the id and the place of its caller. What is charged is a record
-- of its own, of 255 callers, which means that caller alone: so a settlement that is sent
-- twice changes nothing. In other states a grant is not found: there the call says what the caller
-- took, and how the state was after the grant. For GCRA, `mark` and `given` are tat and given back;
-- for a window, `mark` is its label.

-- Returns the first place of the record at a place of a text, its callers, and how many permits
-- each of them has.
local function read(text, at)
  local first, callers, permits = unpack('<BBI6', text, at + 8)
  callers = callers < 255 and callers or 1
  return first, callers, floor(permits / callers)
end

-- Gives the caller of the record at a place of the text so many permits, in a record of its own.
local function change(text, at, permits)
  local first, callers, each = read(text, at)
  local before, behind = of_place - first, first + callers - of_place - 1
  local parts, time, number = {}, sub(text, at + 16, at + 21), byte(text, at + 9)
  local function add(first, callers, permits)
    if callers > 0 then
      parts[#parts + 1] = pack('<c8BBI6', of, first, callers, permits) .. time
    end
  end
  add(first, before, before * each)
  add(of_place, number < 255 and 1 or 255, permits)
  add(of_place + 1, behind, behind * each)
  for w = 2, #log - 7, 5 do
    -- What is ahead is in no sum.
    if log[w + 3] > at then
      log[w + 3] = log[w + 3] + 22 * #parts - 22
    elseif at < log[#log] then
      log[w + 2] = min(max(log[w + 2] + permits - each, 0), MOST)
    end
  end
  log[#log] = log[#log] + 22 * #parts - 22
  return sub(text, 1, at - 1) .. table.concat(parts) .. sub(text, at + 22)
end

local function settle_log(permits, was)
  local text, kept = rest_of(name, tail, log[#log], 0) .. (lent or ''), log[#log] - #tail
  local has, added, charged, first, callers, each = nil, nil, 0, nil, nil, nil
  local places = rare.places(text, 22, true)
  for _, at in ipairs(places) do
    first, callers, each = read(text, at)
    if byte(text, at + 9) == 255 then
      added, charged = at, each
    else
      has = (has or 0) + each
    end
  end
  local rest, owed = max((has or 0) - permits, 0), max(permits - (has or was), 0)
  local freed = rest + charged - owed
  for number = #places, 1, -1 do
    -- The newest give first.
    local at = places[number]
    first, callers, each = read(text, at)
    local gives = at == added and charged - owed or min(each, rest)
    if gives ~= 0 then
      text, kept = change(text, at, each - gives), min(kept, at - 1)
      rest = at == added and rest or rest - gives
    end
  end
  tail, lent = sub(text, kept + 1, log[#log]), sub(text, log[#log] + 1)
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
    return settle_log(permits, was)
  elseif of_kind == kind and kind == 2 then
    return settle_gcra(permits - was, mark, given)
  elseif of_kind == kind and of_label == mark and now < of_ends then
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
