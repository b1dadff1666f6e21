-- Decides a request without flags of new callers for one charge, or of one for a list, if each
-- charge is usual. That of one charge is written at once. If one of a list has no room, or is not
-- usual, request.lua goes through all again. A fragment of decide.lua.

-- A byte each: `head` has the callers, the charges and the flags of the request, `number` the row
-- and the flags of the charge.
local head, of, key, number, permits, next_at = unpack('<I3c8BHI4', arg, at)
if head > 256 and (head < 512 or head % 256 == 1 and head < 65536) then
  local begun, callers, charge = size, 1, 257
  if counts then
    size = size + 1
  end
  if head > 257 and head < 512 then
    callers = head - 256
    charge = head
    charges_at = at + 3 + 8 * callers
    key, number, permits, next_at = unpack('<BHI4', arg, charges_at)
  end
  while true do
    local is_usual, granted, left, next, one, two, told, third, said, page, text, offset, life
    if number ~= row_number then
      if number > 255 then
        break
      end
      --- @include row.lua
    end
    if kind > 2 then
      break
    end
    local name = KEYS[key]
    --- @include read.lua
    if kind == 2 then
      --- @include usual_gcra.lua
    elseif limits == 1 then
      --- @include usual.lua
    else
      --- @include usual_several.lua
    end
    if callers > 1 then
      size = size + 1
      reply[size] = one and callers or 0
    end
    if one then
      size = size + 1
      reply[size] = one
      if two then
        size = size + 1
        reply[size] = two
      end
    elseif told and head < 512 then
      reply[size + 1], reply[size + 2], reply[size + 3] = told, left, third
      size = size + 3
    elseif said and (granted or head < 512) and callers == 1 then
      for place = 1, #said do
        size = size + 1
        reply[size] = said[place]
      end
    else
      -- It goes to request.lua at once, and if it has no room, only to ask there.
      refused = (told or said) and at or refused
      break
    end
    if head > 511 then
      texts[key] = text
      offsets[key] = offset
      lives[key] = life
    elseif text then
      --- @include write.lua
    end
    if charge == head then
      is_decided = true
      break
    end
    charge = charge + 256
    key, number, permits, next_at = unpack('<BHI4', arg, next_at)
  end
  if is_decided then
    at = next_at
    if counts then
      reply[begun + 1] = size - begun - 1
    end
  else
    size = begun
    for charge = 257, head > 511 and charge - 1 or 0, 256 do
      local key = byte(arg, at + 11 + 7 * (charge - 257) / 256)
      texts[key], lives[key] = nil, nil
    end
  end
end
