-- Makes what is written of a log. A fragment of decide.lua; see log.lua for what `it` is. `text` has
-- the records that are not written yet.
--
-- Mostly these are written over what stands behind the old ones, with a new such part behind them.
-- What no longer lives goes when the expiry is put off: then the whole is written.

local last, lent, lead = #it - 1, lents and lents[key] or '', leads and leads[key] or 0
local is_long = it[last + 1] - it[5] > 4400 * (last + 2)
offset = it[last + 1] - #text
if is_long or it[last - 1] < server_ms + it[2] + lead then
  -- Windows go by which nothing was granted for their interval. One stays if clocks disagree.
  for w = last - 6, 2, -5 do
    if it[w + 4] <= now - it[w] and last > 8 then
      rare.drop_window(it, w)
      last = last - 5
    end
  end
  local cut = it[5]
  if cut < offset then
    text = call('GETRANGE', name, format('%d', cut), format('%d', offset - 1)) .. text
  elseif cut > offset then
    text = sub(text, cut - offset + 1)
  end
  for w = 2, last - 6, 5 do
    if it[w + 3] < cut then
      it[w + 2], it[w + 3] = it[4], cut
    end
    it[w + 3] = it[w + 3] - cut
  end
  if is_long and it[1] > now - it[2] then
    --- @include merge.lua
  end
  it[last - 1] = min(server_ms + 2 * it[2] + lead, LATEST)
  offset, life = 0, it[last - 1] - server_ms
end
it[last] = it[last] + #lent / 22
local windows = last == 8 and '<I6I7I7I4I6I6I4'
  or '<' .. string.rep('I6I7I7I4I6', (last - 3) / 5) .. 'I6I4'
text = text .. lent .. pack(windows, unpack_list(it, 2, last))
