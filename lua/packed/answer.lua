-- Returns the reply. A fragment of decide.lua.

if answer then
  return math.type and math.floor(answer) or answer
end
for place = 1, math.type and #reply or 0 do
  reply[place] = reply[place] and math.floor(reply[place])
end
return reply
