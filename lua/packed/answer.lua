-- Returns the reply. A fragment of decide.lua.

if answer then
  return math.type and floor(answer) or answer
end
for place = 1, math.type and #reply or 0 do
  reply[place] = reply[place] and floor(reply[place])
end
return reply
