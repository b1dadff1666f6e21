-- Decides for the callers of one limiter, for algorithms whose permits left are one number.
--
-- KEYS  those of the operation
-- ARGV  from 8 on, four for each caller in the order of arrival: '1' if it waits in the queue, else
--       '0'; permits to take; two that are not used

-- Returns whether the limit allows the permits of any caller, if all permits are free.
local function is_possible(rate)
  for i = 9, #ARGV, 4 do
    if tonumber(ARGV[i]) <= rate then
      return true
    end
  end
  return false
end

-- Adds to the reply, for each caller, its status and a wait of 0. Returns the permits left, and for
-- each refused caller the place of its wait, and the permits that must be free for it.
local function decide(reply, left, rate)
  local refused, closed, in_line = {}, false, 0
  for i = 8, #ARGV, 4 do
    local waits, permits = ARGV[i] == '1', tonumber(ARGV[i + 1])
    local status = REFUSED
    if left >= permits and not (closed and waits) then
      status = GRANTED
      left = left - permits
    elseif permits > rate then
      status = ABOVE_RATE
    else
      local needs = permits
      if waits then
        needs = in_line + permits
        in_line = needs
        closed = true
      end
      refused[#refused + 1] = { place = #reply + 2, needs = needs }
    end
    reply[#reply + 1] = status
    reply[#reply + 1] = 0
  end
  return left, refused
end
