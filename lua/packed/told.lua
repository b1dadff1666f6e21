-- Tells what a charge of a request that is not simple has fetched or freed, and keeps what judging
-- its ban needs. A fragment of decide.lua.

if ahead then
  size = size + 1
  reply[size] = has_fetched and 1 or 0
end
if judged and judged[charge] then
  judged[charge].granted, judged[charge].wait = granted, told and -told or 0
end
if told and flags % 2 == 0 then
  wait = max(wait, -told)
end
