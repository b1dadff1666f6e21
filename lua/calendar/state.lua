-- Functions on the state of a calendar. Joined behind lib/state.lua.
--
-- KEYS  1  the label of a window and the permits used in it, as in "20261101 37". The limit is not
--          stored. The key outlives its window, so that hosts whose time zone data differ by an
--          hour still find it.

-- In ms.
local LINGERS = 3600000

-- Returns the stored label and the permits used under it. Without a key the label is nil and 0 are
-- used; both are nil if the value has another form.
local function stored_use()
  local stored = redis.call('GET', KEYS[1])
  if not stored then
    return nil, 0
  end
  local label, used = string.match(stored, '^(%d+) (%d+)$')
  return tonumber(label), tonumber(used)
end

-- Stores the permits used, and the TTL of the key for a window that ends in `life` ms. Without
-- `life` the key keeps its TTL.
local function store_use(label, used, life)
  local text = string.format('%.0f %.0f', label, used)
  if life then
    redis.call('SET', KEYS[1], text, 'PX', life + LINGERS)
  else
    redis.call('SET', KEYS[1], text, 'KEEPTTL')
  end
end

-- Returns the ms until the stored window ends; zero or less if it has ended and only its key is
-- left.
local function life_of_stored()
  local left = redis.call('PTTL', KEYS[1])
  return left < 0 and 1 or left - LINGERS
end
