-- Writes of any number of sessions in one call, each of them whole or not at all.
-- KEYS: meta and tokens of each write.
-- ARGV: ttl_ms, owner; then for each write its kind, its epoch and
--   create, restore: prompt, params, tokens, finish
--   append:          byte offset, tokens, finish
--   truncate:        bytes to keep, finish
-- For each write 1 (done), {'exists'}, {'missing'}, {'stale', epoch}, {'rival'}, {'other'}, {'gap', bytes},
-- {'conflict'}, {'finished', reason} or {'error', what the server says}.
local ttl, owner, cursor = ARGV[1], ARGV[2], 2

local function take()
  cursor = cursor + 1
  return ARGV[cursor]
end

local function expire(meta_key, tokens_key)
  redis.call('PEXPIRE', meta_key, ttl)
  redis.call('PEXPIRE', tokens_key, ttl)
  return 1
end

local function put(meta_key, tokens_key, epoch, write, tokens)
  redis.call('HSET', meta_key, 'epoch', epoch, 'owner', owner, 'prompt', write.prompt,
    'params', write.params, 'bytes', #tokens, 'finish', write.finish)
  redis.call('PEXPIRE', meta_key, ttl)
  if #tokens > 0 then
    redis.call('SET', tokens_key, tokens, 'PX', ttl)
  else
    redis.call('DEL', tokens_key)
  end
  return 1
end

local function create(meta_key, tokens_key, epoch, write)
  if redis.call('EXISTS', meta_key) == 1 then
    return {'exists'}
  end
  return put(meta_key, tokens_key, epoch, write, write.tokens)
end

local function restore(meta_key, tokens_key, epoch, write)
  local meta = redis.call('HMGET', meta_key, 'epoch', 'prompt', 'params', 'bytes', 'finish')
  local tokens, held = write.tokens, ''
  if meta[1] then
    if meta[2] ~= write.prompt or meta[3] ~= write.params then
      return {'other'}
    end
    -- Where the tokens were evicted without their meta there is nothing to own but the epoch.
    local whole = redis.call('STRLEN', tokens_key) == tonumber(meta[4])
    local ahead = tonumber(epoch) - tonumber(meta[1])
    if ahead < 0 or (ahead == 0 and whole) then
      return {'stale', meta[1]}
    end
    held = whole and redis.call('GET', tokens_key) or ''
    local known = math.min(#held, #tokens)
    if string.sub(held, 1, known) ~= string.sub(tokens, 1, known) then
      held = '' -- an owner before went on otherwise: nobody has seen what it drew
    elseif whole and meta[5] ~= '' then
      return {'finished', meta[5]}
    end
  end
  return put(meta_key, tokens_key, epoch, write, #held > #tokens and held or tokens)
end

-- A write needs the epoch that the store knows, and be its owner; or a higher epoch: then the store has lost
-- the claim (a replica that lagged was promoted), and the write takes the session over.
local function refused(meta, bytes, epoch)
  if not meta[1] or bytes ~= tonumber(meta[3]) then
    return {'missing'}
  end
  local ahead = tonumber(epoch) - tonumber(meta[1])
  if ahead < 0 then
    return {'stale', meta[1]}
  end
  if ahead == 0 and meta[2] and meta[2] ~= owner then
    return {'rival'}
  end
end

local function append(meta_key, tokens_key, epoch, write)
  local meta = redis.call('HMGET', meta_key, 'epoch', 'owner', 'bytes', 'finish')
  local bytes = redis.call('STRLEN', tokens_key)
  local refusal = refused(meta, bytes, epoch)
  if refusal then
    return refusal
  end
  local base, tokens, finish = tonumber(write.base), write.tokens, write.finish
  if base > bytes then
    return {'gap', bytes}
  end
  -- What is there already must be the same: then this is a retry.
  local known = math.min(bytes - base, #tokens)
  if known > 0 and redis.call('GETRANGE', tokens_key, base, base + known - 1) ~= string.sub(tokens, 1, known) then
    return {'conflict'}
  end
  local fresh = string.sub(tokens, known + 1)
  local settled = meta[4] ~= ''
  if settled and (#fresh > 0 or (finish ~= '' and finish ~= meta[4])) then
    return {'finished', meta[4]}
  end
  -- An older commit may be retried, but it may not end a session that went on past it.
  if not settled and finish ~= '' and base + #tokens < bytes then
    return {'conflict'}
  end
  if #fresh > 0 then
    bytes = redis.call('APPEND', tokens_key, fresh)
  end
  redis.call('HSET', meta_key, 'epoch', epoch, 'owner', owner, 'bytes', bytes,
    'finish', finish ~= '' and finish or meta[4])
  return expire(meta_key, tokens_key)
end

local function truncate(meta_key, tokens_key, epoch, write)
  local meta = redis.call('HMGET', meta_key, 'epoch', 'owner', 'bytes')
  local bytes = redis.call('STRLEN', tokens_key)
  local refusal = refused(meta, bytes, epoch)
  if refusal then
    return refusal
  end
  local keep = tonumber(write.keep)
  if keep > bytes then
    return {'gap', bytes}
  end
  if keep == 0 then
    redis.call('DEL', tokens_key)
  elseif keep < bytes then
    redis.call('SET', tokens_key, redis.call('GETRANGE', tokens_key, 0, keep - 1))
  end
  redis.call('HSET', meta_key, 'epoch', epoch, 'owner', owner, 'bytes', keep, 'finish', write.finish)
  return expire(meta_key, tokens_key)
end

local kinds = {
  create = {create, {'prompt', 'params', 'tokens', 'finish'}},
  restore = {restore, {'prompt', 'params', 'tokens', 'finish'}},
  append = {append, {'base', 'tokens', 'finish'}},
  truncate = {truncate, {'keep', 'finish'}},
}
local replies = {}
for index = 1, #KEYS, 2 do
  local kind, epoch, write = kinds[take()], take(), {}
  for _, name in ipairs(kind[2]) do
    write[name] = take()
  end
  local done, reply = pcall(kind[1], KEYS[index], KEYS[index + 1], epoch, write)
  if not done then
    local text = type(reply) == 'table' and reply.err or tostring(reply)
    if not string.find(text, 'WRONGTYPE', 1, true) then
      return redis.error_reply(text) -- full, read-only and the like: it is so for the others too
    end
    reply = {'error', text}
  end
  replies[#replies + 1] = reply
end
return replies
