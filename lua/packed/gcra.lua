-- Decides a charge by GCRA, which keeps one time: `tat`, until which the permits in use are paid.
-- A fragment of request.lua.
--
--   I6 interval, ms, I7 rate   by which tat is counted
--   I7 ends    when the key expires, us by the server's clock
--   I7 given back   us by which settlements moved tat back
--   I7 tat     when all permits are free, us: the theoretical arrival time
--   c8 id, B place, B callers of the last four grants, newest first; B kind, B magic
--
-- In memory: `of_interval`, `of_rate`, `of_ends`, `back`, `tat`, and the ids.
-- A permit takes `emission`, and all permits `whole`; how far tat lies ahead of now is the backlog.

emission = emission or ceil(interval * 1000 / rate)
local whole, cost, backlog, rest = emission * rate, permits * emission, 0, 0
if fits then
  backlog = tat > micros and tat - micros or 0
else
  if of_kind > 0 then
    -- Until something is taken, what is in use goes on as it is.
    backlog, rest = min(rare.use(), rate) * emission, rare.rest(rate - permits)
  end
  of_ends, back = of_kind == 2 and of_ends or 0, of_kind == 2 and back or 0
end
local room = whole - backlog
granted = given or callers * cost <= room and callers or room < cost and 0 or floor(room / cost)
if takes and granted > 0 then
  if given then
    -- A debt is up to as much above all permits.
    backlog = max(backlog, min(backlog + cost, 2 * whole))
  else
    backlog = backlog + granted * cost
  end
  offset = fits and 27 or 0
  tat = micros + backlog
  tat = tat < MOST and tat or MOST
  -- The end is put off by as much as all permits take, so most grants leave it.
  if server + backlog > of_ends or lives and lives[key] then
    of_ends = min(server + backlog + whole, MOST)
    life, offset = floor((of_ends - server) / 1000) + 2, 0
  end
  text = pack('<I7c8Hc30H', tat, of, of_place + 256 * granted, ids or string.rep('\0', 30),
    18 + 256 * 183)
  text = offset > 0 and text or pack('<I6I7I7I7', interval, rate, of_ends, back) .. text
end
one = backlog
two = back
if granted < callers then
  told = max(backlog + cost - whole, text and 0 or rest)
  told = permits > rate and -MOST or -ceil(told / 1000)
  left, third = backlog, back
end
