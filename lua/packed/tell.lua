-- Tells what becomes of a charge. A fragment of request.lua; decide.lua describes
-- the numbers.

if held then
  -- What was set back stays so.
  held[key] = nil
end
if next and granted > 0 and not each then
  one = left > 0 and left or 0
  two = next < interval and next or interval
  if (rate + 1) * (interval + 1) <= MOST then
    one = one * (interval + 1) + two
    two = nil
  end
end
if is_lone and granted > 0 and not two and not each then
  answer = one
else
  reply = reply or { nil, nil, nil, nil, nil, nil, nil, nil }
  if callers > 1 then
    reply[size + 1], size = granted, size + 1
  end
  if said then
    for place = 1, #said do
      reply[size + place] = said[place]
    end
    size = size + #said
  elseif granted > 0 and not each then
    size = size + 1
    reply[size] = one
    if two then
      size = size + 1
      reply[size] = two
    end
  elseif granted > 0 then
    for limit = 1, limits do
      local its_interval = ladder[2 * limit - 1]
      one, two = max(each[3 * limit - 2], 0), min(each[3 * limit - 1], its_interval)
      if (ladder[2 * limit] + 1) * (its_interval + 1) <= MOST then
        reply[size + 1], size = one * (its_interval + 1) + two, size + 1
      else
        reply[size + 1], reply[size + 2], size = one, two, size + 2
      end
    end
  end
  if granted < callers and not said then
    reply[size + 1], reply[size + 2], reply[size + 3] = told, left, third
    size = size + (third and 3 or left and 2 or 1)
    for limit = 1, each and limits or 0 do
      reply[size + 1], reply[size + 2], size = each[3 * limit - 2], each[3 * limit], size + 2
    end
  end
end
if ahead then
  reply[size + 1], size = has_fetched and 1 or 0, size + 1
end
if pages then
  -- What judging needs: see ban.lua.
  if its_ban then
    its_ban.granted, its_ban.wait = granted, told and -told or 0
  end
  wait = told and flags % 2 == 0 and max(wait, -told) or wait
end
