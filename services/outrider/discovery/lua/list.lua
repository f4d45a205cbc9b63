#!lua flags=no-writes
-- KEYS: instances.
-- {since, '1' if no lease is in force although there are entries, bodies ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
local since, alive, expired = '', {}, {}
for i = 1, #all, 2 do
  if all[i] == 'since' then
    since = all[i + 1]
  else
    local ends, body = string.match(all[i + 1], '^(%d+) %d+ %S+ (.*)$')
    local list = ends and tonumber(ends) > now and alive or expired
    list[#list + 1] = body
  end
end
-- If nobody at all renews, it is rather this server that could not be written to.
local stalled = #alive == 0 and #expired > 0
local reply = {since, stalled and '1' or '0'}
for _, body in ipairs(stalled and expired or alive) do
  reply[#reply + 1] = body
end
return reply
