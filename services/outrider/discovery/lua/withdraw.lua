#!lua flags=allow-oom
-- KEYS: instances. ARGV: field, instance id.
-- 1: taken out; 0: it was not there, or another instance has taken its place.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held or string.match(held, '^%d+ %d+ (%S+) ') ~= ARGV[2] then
  return 0
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'written', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return redis.call('HDEL', KEYS[1], ARGV[1])
