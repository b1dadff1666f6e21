-- Decides the usual charge by GCRA at once, by the rules of gcra.lua, which describes the bytes: by
-- the limit of the state, from no clock that was set back, and its key ends late enough. It leaves
-- any other charge as it is. A fragment of simple.lua.

if #page == 76 then
  local of_interval, of_rate, ends, back, tat, ids, form = unpack('<I6I7I7I7I7c40H', page)
  emission = emission or ceil(interval * 1000 / rate)
  local whole, cost, backlog = emission * rate, permits * emission, tat - micros
  if form == 18 + 256 * 183 and of_interval == interval and of_rate == rate
    and not (by_server and backlog > 2000 * interval) then
    backlog = backlog > 0 and backlog or 0
    local after = backlog + callers * cost
    tat = micros + after
    if after <= whole then
      if server + after <= ends and tat < MOST then
        one = after
        two = back
        offset = 27
        text = pack('<I7c8Hc30', tat, of, 256 * callers, ids)
      end
    elseif backlog + cost > whole and cost <= whole then
      told, left, third = -ceil((backlog + cost - whole) / 1000), backlog, back
    end
  end
end
