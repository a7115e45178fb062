-- Look: is this the server, and the epoch, that the caller means?
--
-- KEYS  {ta}:m      ARGV  1 "7:<run id>"
-- Returns {"same"} or {"stale", m}.
local marker = redis.call('GET', KEYS[1])
if marker == ARGV[1] then return {'same'} end
return {'stale', marker or ''}
