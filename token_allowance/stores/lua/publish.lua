-- Publish: this is the policy version that the database had at a moment, so it may be relied on for
-- a while; unless somebody is about to change it (protocol A).
--
-- KEYS  {ta}:m {ta}:version {ta}:lease {ta}:hold
-- ARGV  1 "7:<run id>"
--       2 "1764477600000000"  the version read
--       3 "1764477600123"     when reading began by this server's clock, milliseconds; "" for a
--                             writer, who only raises the number
--       4 "2000"              how long it may be relied on, milliseconds
-- Returns {"published"}, {"older"}: a newer one is known, {"stale", m}.
local got = redis.call('MGET', unpack(KEYS))
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
local function less(a, b) return #a < #b or (#a == #b and a < b) end
if got[2] and less(ARGV[2], got[2]) then return {'older', got[2]} end
if got[2] ~= ARGV[2] then
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('DEL', KEYS[3])
end
if ARGV[3] == '' or got[4] then return {'published'} end
local now = redis.call('TIME')
local left = tonumber(ARGV[3]) + tonumber(ARGV[4]) - (now[1] * 1000 + math.floor(now[2] / 1000))
if left > redis.call('PTTL', KEYS[3]) then redis.call('SET', KEYS[3], 1, 'PX', left) end
return {'published'}
