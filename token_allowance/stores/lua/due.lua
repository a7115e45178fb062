-- Due: the reservations whose lease has run out by this server's clock.
--
-- KEYS  {ta}7:leases     ARGV  "500" at most so many
-- Returns their ids, the longest due first.
local now = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now[1] .. string.sub('00000' .. now[2], -6, -4), 'LIMIT', 0, ARGV[1])
