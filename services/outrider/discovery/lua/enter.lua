#!lua flags=allow-oom
-- KEYS: instances. ARGV: field, lease_ms, instance id, number ('' at first), body.
-- {'ok', number}, or {'taken', instance id}: a younger instance stands there and is alive.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSETNX', KEYS[1], 'since', time[1] .. '.' .. time[2])
local held = redis.call('HGET', KEYS[1], ARGV[1])
local number = tonumber(ARGV[4])
local last, holder, ends = 0, '', 0
if held then
  local parts = {string.match(held, '^(%d+) (%d+) (%S+) ')}
  ends, last, holder = tonumber(parts[1]), tonumber(parts[2]), parts[3]
end
if not number then
  number = math.max(now, last + 1)
  -- Who comes in sweeps out who died: those that renew have no need to look at all others each time.
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local stops = tonumber(string.match(all[i + 1], '^(%d+) '))
    if stops and stops + 10 * ARGV[2] < now then
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
elseif holder ~= ARGV[3] and last > number and ends > now then
  return {'taken', holder}
end
local ended = string.format('%.0f', now + ARGV[2])
number = string.format('%.0f', number)
local entry = ended .. ' ' .. number .. ' ' .. ARGV[3] .. ' ' .. ARGV[5]
redis.call('HSET', KEYS[1], ARGV[1], entry, 'written', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 86400000)
return {'ok', number}
