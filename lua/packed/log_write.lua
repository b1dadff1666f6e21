-- Makes what is written of a log. A fragment of decide.lua; `text` has the records that are not
-- written yet.
--
-- Mostly these are written over what stands behind the old ones, with a new such part behind them.
-- What no longer lives goes when the expiry is put off, and what was given back when that is much:
-- then the whole is written.

local last, lent, lead = #log - 1, lents and lents[key] or '', leads and leads[key] or 0
local most = 4400 * (last + 2)
local is_long = log[last + 1] - log[5] > most
offset = log[last + 1] - #text
if is_long or log[last + 1] > 2 * most or log[last - 1] < server_ms + log[2] + lead then
  -- Windows go by which nothing was granted for their interval. One stays if clocks disagree.
  for w = last - 6, 2, -5 do
    if log[w + 4] <= now - log[w] and last > 8 then
      rare.drop_window(log, w)
      last = last - 5
    end
  end
  local cut = log[5]
  if cut < offset then
    text = call('GETRANGE', name, format('%d', cut), format('%d', offset - 1)) .. text
  else
    text = sub(text, cut - offset + 1)
  end
  for w = 2, last - 6, 5 do
    if log[w + 3] < cut then
      log[w + 2], log[w + 3] = log[4], cut
    end
    log[w + 3] = log[w + 3] - cut
  end
  if is_long and log[1] > now - log[2] then
    --- @include merge.lua
  end
  log[last - 1] = min(server_ms + 2 * log[2] + lead, LATEST)
  offset, life = 0, log[last - 1] - server_ms
end
log[last] = log[last] + #lent / 22
text = text .. lent
  .. pack('<' .. string.rep('I6I7I7I4I6', (last - 3) / 5) .. 'I6I4', unpack_list(log, 2, last))
