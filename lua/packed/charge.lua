-- Reads a charge of a request that is not simple. A fragment of request.lua.
--
--   B key, B row, B flags (1: a shadow: it counts, but refuses none; 2: it has a ban; 4: it fetches
--     ahead), I4 permits
--   with a ban: B key, B row, I4 strikes reported, I6 age of these, ms: see ban.lua; of a request
--     that only reports them, the permits are the ms until the limit has room
--   ahead: I4 permits, I6 lead, ms, c8 id of what is fetched

its_ban, ahead, given, has_fetched, takes = nil, nil, is_found and 1 or nil, nil, may_take
key, number, flags, permits, cursor = unpack('<BBBI4', arg, cursor)
if flags % 4 > 1 then
  if not bans then
    --- @include ban.lua
  end
  its_ban, cursor = read_charge(cursor), cursor + 12
  failure = its_ban.ban and failure
end
if flags > 3 then
  ahead, lead, id_ahead, cursor = unpack('<I4I6c8', arg, cursor)
  needs_rare = true
end
