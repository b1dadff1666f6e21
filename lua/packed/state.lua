-- Opens the state of a charge. A fragment of request.lua: it sets `of_kind`, to 0 if there is no
-- state, to nil if it is foreign; the numbers of the state, as the fragment of its kind has them;
-- `fits`, whether it counts as the row does; and `is_late`, whether something lies so far ahead
-- that a clock that was set back may have written it. Callers' clocks prove nothing.

of_kind = nil
lent = nil
is_late = nil
if kind == 1 and not ladder then
  -- The limits of the row, one behind the other.
  ladder = limits == 1 and { interval, rate }
    or { unpack(sub('<I6I7I6I7I6I7I6I7', 1, 4 * limits + 1), arg, row + 2) }
end
if pending then
  -- An earlier request has changed it.
  if not logs[key] and byte(pending, -2) == 17 then
    -- By usual.lua, usual_several.lua or settle_usual.lua. If it is written whole, that is done
    -- again at the end.
    local windows = byte(pending, -3)
    local behind, last = 30 * windows + 10, 5 * windows + 4
    log = { unpack('<I6' .. string.rep('I6I7I7I4I6', windows) .. 'I6I4', pending,
      #pending - behind - 5) }
    local start = log[5]
    log[last - 2] = lives[key] and 0 or log[last - 2]
    log[last] = offsets[key] + #pending - behind
    -- All that come behind it look at the first that live.
    heads = heads or {}
    heads[key] = start < offsets[key]
      and { call('GETRANGE', name, format('%d', start), format('%d', start + 219)), start }
    pending = sub(pending, 1, -behind - 1)
    logs[key], texts[key], offsets[key] = log, pending, 0
  end
  if logs[key] then
    local head = heads and heads[key]
    of_kind, log, tail, lent = 1, { unpack_list(logs[key]) }, pending, lents and lents[key]
    page, from = head and head[1] or '', head and head[2] or MOST
  else
    page = (offsets[key] > 0 and call('GETRANGE', name, '0', format('%d', offsets[key] - 1)) or '')
      .. pending
  end
end

local bytes, form = #page, nil
if of_kind then
  -- It is pending.
elseif bytes == 0 then
  of_kind = 0
elseif bytes == 76 then
  of_interval, of_rate, of_ends, back, tat, ids, form = unpack('<I6I7I7I7I7c40H', page)
  if form == 18 + 183 * 256 and of_rate > 0 and of_rate <= of_interval * 1000
    and of_interval <= 3200000000000 then
    of_kind = 2
    is_late = by_server and tat - micros > 2000 * of_interval
  end
elseif bytes == 74 then
  of_label, of_ends, of_used, of_interval, ids, form = unpack('<I6I6I7I6xxxxxxxc40H', page)
  form = form - 183 * 256 - 16
  if form == 3 or form == 5 then
    of_kind, is_late = form, by_server and form == 3 and of_ends > now + of_interval
  end
elseif bytes > 61 then
  local fetched, windows, form, magic = byte(page, -4, -1)
  if form == 17 and magic == 183 and fetched < 65 and windows > 0 and windows < 5 then
    local behind = 22 * fetched + 30 * windows + 10
    local stop = (bytes < 260 and bytes or call('STRLEN', name)) - behind
    if stop > 21 and stop % 22 == 0 then
      if behind + 22 > bytes then
        page = call('GETRANGE', name, format('%d', stop - 22), '-1')
        bytes = #page
      end
      of_kind, tail, from = 1, '', stop + behind - bytes
      log = { unpack('<I6' .. string.rep('I6I7I7I4I6', windows) .. 'I6I4', page,
        bytes - 30 * windows - 15) }
      if fetched > 0 then
        log[1], log[#log - 1] = unpack('<I6', page, bytes - behind - 5), log[#log - 1] - fetched
        lent = sub(page, bytes - behind + 1, bytes - 30 * windows - 10)
      end
      log[5 * windows + 4] = stop
      for w = 2, 5 * windows - 3, 5 do
        if log[w] < 1 or w > 2 and log[w] >= log[w - 5] or log[w + 3] % 22 > 0
          or log[w + 3] > stop then
          of_kind = nil
        end
      end
      is_late = by_server and log[1] > now and log[1] > now + min(floor(log[2] / 10), 1000)
    end
  end
end
fits = of_kind == kind
if not fits then
  ids = nil
elseif kind == 1 then
  fits = #log == 5 * limits + 4 and log[2] == interval
  for limit = 2, limits do
    fits = fits and log[5 * limit - 3] == ladder[2 * limit - 1]
  end
elseif kind == 2 then
  fits = of_interval == interval and of_rate == rate
end
