-- KEYS: meta, tokens. ARGV: ttl_ms, epoch, byte offset, tokens, finish.
-- {'ok'}, {'missing'}, {'stale', epoch}, {'gap', bytes}, {'conflict'} or {'finished', reason}.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'bytes', 'finish')
local bytes = redis.call('STRLEN', KEYS[2])
if not meta[1] or bytes ~= tonumber(meta[2]) then
  return {'missing'}
end
if tonumber(meta[1]) ~= tonumber(ARGV[2]) then
  return {'stale', meta[1]}
end
local base, tokens, finish = tonumber(ARGV[3]), ARGV[4], ARGV[5]
if base > bytes then
  return {'gap', bytes}
end
-- What is there already must be the same: then this is a retry.
local known = math.min(bytes - base, #tokens)
if known > 0 and redis.call('GETRANGE', KEYS[2], base, base + known - 1) ~= string.sub(tokens, 1, known) then
  return {'conflict'}
end
local fresh = string.sub(tokens, known + 1)
local settled = meta[3] ~= ''
if settled and (#fresh > 0 or (finish ~= '' and finish ~= meta[3])) then
  return {'finished', meta[3]}
end
-- An older commit may be retried, but it may not end a session that went on past it.
if not settled and finish ~= '' and base + #tokens < bytes then
  return {'conflict'}
end
if #fresh > 0 then
  redis.call('HSET', KEYS[1], 'bytes', redis.call('APPEND', KEYS[2], fresh))
end
if finish ~= '' then
  redis.call('HSET', KEYS[1], 'finish', finish)
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {'ok'}
