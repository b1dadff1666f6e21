-- Makes the functions that read the records of a log, or the strikes of a ban. Those that are not
-- written yet are its `tail`, which ends at the offset `stop`. A fragment of prepare.lua.

-- Times never fall, so five records are passed at once by the time of the last. What lies between
-- the permits of two is read as two numbers, which costs less than to pass over each byte.
local FIVE = '<I6I8I8I6I8I8I6I8I8I6I8I8I6I6'

-- Walks over what has so many bytes each, from an offset on, as long as the times are at most
-- `latest`, or the permits were all given back, and the sum is less than `enough`. `page` is a part
-- of the string, from `from` on. Returns the offset of the first one behind, its time, and the sum
-- without it.
function walk(name, size, tail, page, from, stop, offset, latest, enough)
  local sum, kept, numbers = 0, stop - #tail, size == 22 and '<I6I6' or '<I4I6'
  local is_far = size == 22
  while offset < stop do
    if offset >= kept then
      page, from = tail, kept
    elseif offset < from or offset + size > from + #page then
      -- Most walks are short, but one that goes on behind a page is not.
      local last = offset + (offset == from + #page and 90 * size or 10 * size) - 1
      page, from = call('GETRANGE', name, format('%d', offset), format('%d', last)), offset
    end
    local at, behind = offset - from + 11, offset < kept and min(kept, from + #page) or stop
    local left = behind - offset
    local permits, time = unpack(numbers, page, at)
    if time > latest and permits > 0 or sum + permits >= enough then
      return offset, time, sum
    end
    sum, offset, at, left = sum + permits, offset + size, at + size, left - size
    while is_far and left >= 110 do
      local a, _, _, b, _, _, c, _, _, d, _, _, e, time = unpack(FIVE, page, at)
      is_far = time <= latest and sum + a + b + c + d + e < enough
      if is_far then
        sum, offset, at, left = sum + a + b + c + d + e, offset + 110, at + 110, left - 110
      end
    end
  end
  return offset, nil, sum
end

-- Returns all from an offset on.
function rest_of(name, tail, stop, offset)
  local kept = stop - #tail
  if offset >= kept then
    return sub(tail, offset - kept + 1)
  end
  return call('GETRANGE', name, format('%d', offset), format('%d', kept - 1)) .. tail
end
