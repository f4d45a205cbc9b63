-- KEYS: meta, tokens. ARGV: ttl_ms, owner to claim it for (empty: only read).
-- {epoch, prompt, params, tokens, finish}, or an empty list if there is no such session.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'prompt', 'params', 'bytes', 'finish')
-- A session whose tokens were evicted without its meta would restart from the middle.
if not meta[1] or redis.call('STRLEN', KEYS[2]) ~= tonumber(meta[4]) then
  return {}
end
local epoch = tonumber(meta[1])
if ARGV[2] ~= '' then
  epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
  redis.call('HSET', KEYS[1], 'owner', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return {epoch, meta[2], meta[3], redis.call('GET', KEYS[2]) or '', meta[5]}
