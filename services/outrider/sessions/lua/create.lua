-- KEYS: meta, tokens. ARGV: ttl_ms, epoch, prompt, params, tokens, finish.
-- 1: created; 0: the id is in use.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'prompt', ARGV[3], 'params', ARGV[4],
  'bytes', #ARGV[5], 'finish', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
if #ARGV[5] > 0 then
  redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[1])
else
  redis.call('DEL', KEYS[2])
end
return 1
