-- Writes `text` from an offset on, or as the whole. A fragment of decide.lua and
-- simple.lua.

if not life then
  -- Many keys have the same numbers, and to make one a text costs as much as a third of a command.
  if offset ~= last_offset then
    last_offset, offset_text = offset, format('%d', offset)
  end
  done = write('SETRANGE', name, offset_text, text)
elseif life <= 0 then
  call('UNLINK', name)
else
  if life ~= last_life then
    -- A caller's clock may stand still for a while.
    last_life, life_text = life, format('%d', life + (by_server and 0 or 60000))
  end
  if not is_absent then
    done = write('SET', name, text, 'PX', life_text)
  elseif not call('SET', name, text, 'PX', life_text, 'NX') then
    -- It has an empty string.
    answer, reply = nil, { false }
  end
end
