#!lua flags=no-writes
-- KEYS: instances.
-- {since, '1' if no lease runs any more although nobody has shown that he could renew one, bodies ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marks = redis.call('HMGET', KEYS[1], 'since', 'written')
-- A lease is over when its end has passed and somebody has written since. If nobody has, it is rather this
-- server that could not be written to.
local over = math.min(now, tonumber(marks[2] or 0))
local all = redis.call('HGETALL', KEYS[1])
local reply, running = {marks[1] or '', '0'}, false
for i = 1, #all, 2 do
  local ends, body = string.match(all[i + 1], '^(%d+) %d+ %S+ (.*)$')
  if ends and tonumber(ends) > over then
    reply[#reply + 1] = body
    running = running or tonumber(ends) > now
  end
end
if #reply > 2 and not running then
  reply[2] = '1'
end
return reply
