-- Renames a limiter, with what is in use. A limiter that had the new name is lost.
--
-- KEYS  1-5, see lib/state.lua; 6-10 the same under the new name
-- ARGV  none
-- Reply 1, or 0 if there is no limiter to rename
--
-- RRateLimiter.rename of Redisson 4.7.0 renames only the hash: the new name then has all permits,
-- and the old keys stay behind. Of a limit per client only this client's part moves, as other
-- clients' ids are unknown.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
for i = 1, 5 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('RENAME', KEYS[i], KEYS[i + 5])
  else
    redis.call('UNLINK', KEYS[i + 5])
  end
end
return 1
