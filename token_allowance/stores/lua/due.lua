-- Due: the reservations whose lease has run out by this server's clock.
--
-- KEYS  {ta}:m {ta}7:leases      ARGV  1 "7:<run id>"  2 "500" at most so many
-- Returns {"due", id…}, the longest due first, or {"stale", m}.
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {'stale', marker or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now), 'LIMIT', 0, ARGV[2])
return {'due', unpack(found)}
