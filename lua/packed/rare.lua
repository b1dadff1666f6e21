-- Makes the functions that few calls need: for states of another kind or with other limits than the
-- row, for clocks that were set back, and for permits that were fetched ahead. They do what they do
-- to the state that is open. A fragment of prepare.lua.

rare, held, lents, leads = {}, {}, {}, {}
logs, texts, offsets, lives = logs or {}, texts or {}, offsets or {}, lives or {}
--- @include cut_times.lua

-- Sets back what lies so far ahead that only a clock that was set back has written it. It is held,
-- and written even if nothing is taken, as otherwise the next call would find the same. Returns
-- whether tat is moved.
function rare.set_back()
  if of_kind == 1 then
    tail = cut_times(rest_of(name, tail, log[#log], 0), 22, now)
    lent = lent and cut_times(lent, 22, now + floor(log[2] / 10))
    log[1], log[#log - 2], from = now, 0, MOST
    logs[key], texts[key], lents[key], held[key] = { unpack_list(log) }, tail, lent, true
  elseif of_kind == 2 then
    -- A debt is at most a whole limit above a whole limit.
    local whole = ceil(of_interval * 1000 / of_rate) * of_rate
    is_late = tat - micros > 2 * whole + floor(whole / 5)
    if is_late then
      tat, held[key] = micros + whole, true
    end
    return is_late
  elseif of_kind then
    of_label, of_ends = now + of_interval, now + of_interval
    page = pack('<I6I6', of_label, of_ends) .. sub(page, 13)
    texts[key], offsets[key], lives[key], held[key] = page, 0, of_interval, true
  end
end

-- Of what is ahead and later than `expired`, returns the first time, the sum, the last time, and
-- where the first is. The first was not given back whole, unless `all` count.
function rare.ahead(expired, all)
  local first, sum, last, place = nil, 0, 0, nil
  for at = 1, lent and #lent or 0, 22 do
    local permits, time = unpack('<I6I6', lent, at + 10)
    if time > expired then
      sum, last = sum + permits, max(last, time)
      if (permits > 0 or all) and (not first or time < first) then
        first, place = time, at
      end
    end
  end
  return first, sum, last, place
end

-- Returns how many permits are in use by the limits of the state. From a calendar nothing is taken
-- over, as it would count until its window ends.
function rare.use()
  if of_kind == 1 then
    local first, sum = rare.ahead(now - log[2])
    local offset, time, gone =
      walk(name, 22, tail, page, from, log[#log], log[5], now - log[2], MOST)
    return max(log[4] - gone, 0) + sum
  elseif of_kind == 2 then
    local backlog, emission = max(tat - micros, 0), ceil(of_interval * 1000 / of_rate)
    -- By the server's clock, more than all is a debt.
    return ceil((by_server and min(backlog, emission * of_rate) or backlog) / emission)
  end
  return of_kind == 3 and now < of_ends and of_used or 0
end

-- Returns the us until no more than so many permits are in use; of another kind than GCRA, until
-- none are.
function rare.rest(used)
  if of_kind == 2 then
    return tat - micros - used * ceil(of_interval * 1000 / of_rate)
  end
  if of_kind == 5 then
    return 0
  end
  local first, sum, last = rare.ahead(-1)
  return 1000 * ((of_kind == 1 and max(log[1], last) + log[2] or of_ends) - now)
end

-- Takes a window out of a log.
function rare.drop_window(log, w)
  for _ = 1, 5 do
    table.remove(log, w)
  end
  log[#log - 1] = log[#log - 1] - 256
end

-- Adds the windows of the row that the log lacks. A log keeps four: of those that the row does not
-- have, the shortest go.
function rare.add_windows()
  local begin, stop, is_ours, w = log[5], log[#log], {}, 2
  for limit = 1, limits do
    local its_interval = ladder[2 * limit - 1]
    is_ours[its_interval] = true
    while w < #log - 2 and log[w] > its_interval do
      w = w + 5
    end
    if w == #log - 2 or log[w] ~= its_interval then
      local start = walk(name, 22, tail, page, from, stop, begin, now - its_interval, MOST)
      local behind, time, used = walk(name, 22, tail, page, from, stop, start, LATEST, MOST)
      for _, number in ipairs({ 0, start, used, 0, its_interval }) do
        table.insert(log, w, number)
      end
      log[#log - 1] = log[#log - 1] + 256
    end
  end
  for w = #log - 7, 2, -5 do
    if #log > 24 and not is_ours[log[w]] then
      rare.drop_window(log, w)
    end
  end
end

-- Puts a record behind those of the log.
function rare.append(record)
  local permits, time = unpack('<I6I6', record, 11)
  log[1], log[#log] = max(log[1], time), log[#log] + 22
  for w = 2, #log - 7, 5 do
    log[w + 2] = min(log[w + 2] + permits, MOST)
  end
  tail = tail .. sub(record, 1, 16) .. pack('<I6', log[1])
end

-- Makes records of what was fetched ahead and whose time has come, in the order of the times.
-- Returns whether there was any.
function rare.join_ahead()
  local first, sum, last, place = rare.ahead(-1, true)
  local is_any = first and first <= now
  while first and first <= now do
    rare.append(sub(lent, place, place + 21))
    lent = sub(lent, 1, place - 1) .. sub(lent, place + 22)
    first, sum, last, place = rare.ahead(-1, true)
  end
  lent = lent ~= '' and lent or nil
  lents[key] = lent
  return is_any
end

-- Returns the time at which so many permits have expired, of records from an offset on and of what
-- is ahead and lives; nil if these are fewer.
function rare.time_of_room(offset, expired, missing)
  local all_lent, time = lent, nil
  repeat
    local first, sum, last, place = rare.ahead(expired)
    offset, time, sum =
      walk(name, 22, tail, page, from, log[#log], offset, first or LATEST, missing)
    missing = missing - sum
    if first and not (time and time <= first) then
      missing = missing - unpack('<I6', lent, place + 10)
      lent, time = sub(lent, 1, place - 1) .. sub(lent, place + 22), missing <= 0 and first or nil
    end
  until time or not first
  lent = all_lent
  return time
end
