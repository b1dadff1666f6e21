-- Shared by the scripts of a calendar. Joined behind lib/state.lua at compile time.
--
-- KEYS  1  the permits used, and under which label: "20261101 37". The limit is not stored.
-- The key outlives its window, so that hosts whose zone data differ by an hour still find it.

-- In ms.
local LINGERS = 3600000

-- Returns the stored label and the permits used under it; nil for what is not of this form, and no
-- label if there is no key.
local function stored_use()
  local stored = redis.call('GET', KEYS[1])
  if not stored then
    return nil, 0
  end
  local label, used = string.match(stored, '^(%d+) (%d+)$')
  return tonumber(label), tonumber(used)
end

-- Stores what is used, for `life` ms; without it, for as long as the key has.
local function store_use(label, used, life)
  local text = string.format('%.0f %.0f', label, used)
  if life then
    redis.call('SET', KEYS[1], text, 'PX', life + LINGERS)
  else
    redis.call('SET', KEYS[1], text, 'KEEPTTL')
  end
end

-- Returns the ms until the stored window ends: zero or less if it has, and only the key is left.
local function life_of_stored()
  local left = redis.call('PTTL', KEYS[1])
  return left < 0 and 1 or left - LINGERS
end
