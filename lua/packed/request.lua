-- Decides a request in general. Most are simple: charges of new callers, without bans, and of one
-- alone that fetches ahead. All others are gone through twice, at first only to count. A fragment
-- of decide.lua.

-- Whether permits are taken where there is room; to how many callers they are given in any case.
local charge, takes, given, failure, is_again = 1, true
-- Of a request that is not simple, or fetches ahead: see charge.lua and resolve.lua.
local pages, cursor, is_dry, may_take, has_room, is_found, is_banned, has_fetched
local needs_rare, its_ban, ahead, lead, id_ahead, size_before, before, is_undone
of_place = 0
if not is_lone then
  begun = size
  if counts then
    size = size + 1
  end
  callers, charges, asks, of, key, number, flags, permits, next_at =
    unpack('<BBBc8BBBI4', arg, at)
  charges_at = at + 3 + 8 * callers
  settles = asks == 16 and callers > 0
  if settles then
    was, mark, mark_given, next_at = unpack('<I4I7I7', arg, next_at)
  elseif callers > 1 then
    key, number, flags, permits, next_at = unpack('<BBBI4', arg, charges_at)
  end
  needs_rare = callers > 0 and charges == 1 and flags > 3 and flags < 6
  if (flags < 2 or needs_rare) and (asks < 2 or settles) and callers > 0
    and (charges == 1 or at ~= tried) then
    -- A list takes at once, too. If one of its charges has no room, that is undone, and all are
    -- asked; if one is not usual, all are gone through twice.
    if charges > 1 then
      size_before, takes, next_at = size, at ~= refused, charges_at + 7 * charges
    elseif needs_rare then
      ahead, lead, id_ahead, next_at = unpack('<I4I6c8', arg, next_at)
    end
  else
    pages, cursor, is_dry, has_room, wait, judged = {}, charges_at, true, true, 0, {}
    is_sent_again = callers == 0
    if is_sent_again then
      of, of_place, charges, asks, cursor = unpack('<c8BBB', arg, at + 1)
      callers = 1
    end
    at = cursor
  end
end

repeat
  if pages and not is_again then
    --- @include charge.lua
  elseif charge > 1 and not pages then
    key, number, flags, permits = unpack('<BBBI4', arg, charges_at + 7 * charge - 7)
  end
  local granted, left, next, one, two, told, third, freed, pending, is_usual, each, said = 0
  text, life, is_again = nil, nil, nil
  name = KEYS[key]
  -- A lone call that is not usual has read it.
  page = is_lone and page or pages and pages[key]
  pending = texts and texts[key]
  if not page and not pending then
    --- @include read.lua
    if pages then
      pages[key] = page
    end
  end
  if settles and (is_lone and kind or byte(arg, rows[number])) == 1 then
    --- @include settle_usual.lua
  end
  if number ~= row_number and not is_usual then
    --- @include row.lua
  end
  if size_before and pending then
    before = before or {}
    before[charge] = { logs[key], pending, offsets[key], lives[key], held and held[key] }
  end
  if size_before and flags > 1 then
    failure = false
  elseif kind == 1 and not pending and not pages and not settles and not ahead then
    if limits == 1 then
      --- @include usual.lua
    else
      --- @include usual_several.lua
    end
    log = not is_usual and log
  end
  if not is_usual and (failure == nil or pages) then
    --- @include state.lua
    if not fits or kind == 1 or kind == 5 or is_late or pages or settles then
      --- @include prepare.lua
    end
    if is_banned then
      told = 1 - MOST
    elseif failure ~= nil or freed then
      granted = 1
    elseif kind == 2 then
      --- @include gcra.lua
    elseif kind == 1 then
      --- @include log.lua
    else
      --- @include window.lua
    end
  end
  if text and texts then
    if offset > 0 and texts[key] and offset > offsets[key] then
      text, offset = sub(texts[key], 1, offset - offsets[key]) .. text, offsets[key]
    end
    texts[key], offsets[key] = text, offset
    if life then
      lives[key] = life
    end
    if log then
      logs[key] = kind == 1 and log
    end
  end

  if is_again then
    charge = charge - 1
  elseif is_dry then
    has_room = has_room and (granted > 0 or flags % 2 == 1)
    if charge == charges then
      --- @include resolve.lua
    end
  elseif size_before and (failure ~= nil or takes and granted == 0 and flags % 2 == 0) then
    for charge = charge - 1, 1, -1 do
      local key, it = byte(arg, charges_at + 7 * charge - 7), before and before[charge] or {}
      logs[key], texts[key], offsets[key], lives[key] = it[1], it[2], it[3], it[4]
      if held then
        held[key] = it[5]
      end
    end
    for place = size_before + 1, size do
      reply[place] = nil
    end
    size, charge, is_undone = begun, charges, true
    refused, tried = at, failure ~= nil and at
  elseif failure ~= nil then
    reply = reply or {}
    reply[size + 1], size = failure, size + 1
  elseif settles and not is_lone then
    reply[size + 1], size, answer = answer, size + 1, nil
  elseif not answer then
    --- @include tell.lua
  end
  charge = charge + 1
until charge > charges
if pages then
  at = cursor
  if judged[1] and failure == nil then
    judge(asks > 1 or is_found or is_banned, has_room)
  end
elseif not is_undone then
  at = next_at
end
if counts and not is_undone then
  reply[begun + 1] = size - begun - 1
end
