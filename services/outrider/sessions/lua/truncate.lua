-- KEYS: meta, tokens. ARGV: ttl_ms, epoch, bytes to keep, finish.
-- {'ok'}, {'missing'}, {'stale', epoch} or {'gap', bytes}.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'bytes')
local bytes = redis.call('STRLEN', KEYS[2])
if not meta[1] or bytes ~= tonumber(meta[2]) then
  return {'missing'}
end
if tonumber(meta[1]) ~= tonumber(ARGV[2]) then
  return {'stale', meta[1]}
end
local keep = tonumber(ARGV[3])
if keep > bytes then
  return {'gap', bytes}
end
if keep == 0 then
  redis.call('DEL', KEYS[2])
elseif keep < bytes then
  redis.call('SET', KEYS[2], redis.call('GETRANGE', KEYS[2], 0, keep - 1))
end
redis.call('HSET', KEYS[1], 'bytes', keep, 'finish', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {'ok'}
