-- KEYS: meta, tokens. ARGV: ttl_ms, epoch, prompt, params, tokens, finish.
-- {'ok'}, {'stale', epoch}, {'finished', reason}, {'conflict'} or {'other'} (another session has this id).
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'prompt', 'params', 'bytes', 'finish')
local tokens, held = ARGV[5], redis.call('GET', KEYS[2]) or ''
if not meta[1] or #held ~= tonumber(meta[4]) then
  held = ''
elseif meta[2] ~= ARGV[3] or meta[3] ~= ARGV[4] then
  return {'other'}
elseif tonumber(meta[1]) >= tonumber(ARGV[2]) then
  return {'stale', meta[1]}
elseif meta[5] ~= '' then
  return {'finished', meta[5]}
end
local known = math.min(#held, #tokens)
if string.sub(held, 1, known) ~= string.sub(tokens, 1, known) then
  return {'conflict'}
end
if #held > #tokens then
  tokens = held
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'prompt', ARGV[3], 'params', ARGV[4],
  'bytes', #tokens, 'finish', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
if #tokens > 0 then
  redis.call('SET', KEYS[2], tokens, 'PX', ARGV[1])
else
  redis.call('DEL', KEYS[2])
end
return {'ok'}
