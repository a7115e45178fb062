-- Expire: end one reservation whose lease has run out; give back what it holds, or charge it.
--
-- KEYS  {ta}:m {ta}:gate {ta}7:r:<id>
--       then two per hold:     {ta}7:c:<digest>:u {ta}7:c:<digest>:r   (rolling: its hash twice)
--       then {ta}7:leases {ta}:events
-- ARGV  1 "7:<run id>"
--       2 'R|[[…,"cost",80000,0]]'   what it holds, as far as the caller knows
--       3 "E" or "X"               give back, or charge
--       4 '{"charge":false,"at":"2026-11-30T12:00:00+00:00"}'   the event
--       5 "604800000"              how long its end is remembered, milliseconds
--       6 "ctK"                    a letter per hold, as in reserve.lua
--       7… "80000"                 the amount held, per hold
--       …  "29384"                 a slice per rolling hold
-- Returns {"expired"}, {"alive"}: it has ended or been extended, {"holds", R}, {"wait"}, {"stale", m}.
local units, n = ARGV[6], #ARGV[6]
local got = redis.call('MGET', unpack(KEYS, 1, 3 + 2 * n))
if got[2] then return {'wait'} end
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
local R, leases, id = got[3], KEYS[4 + 2 * n], string.sub(KEYS[3], -36)
local now, score = redis.call('TIME'), redis.call('ZSCORE', leases, id)
if score and tonumber(score) >= tonumber(now[1]) * 1000 + tonumber(now[2]) / 1000 then return {'alive'} end
if not R or string.sub(R, 1, 1) ~= 'R' then
  redis.call('ZREM', leases, id)
  return {'alive'}
end
if R ~= ARGV[2] then return {'holds', R} end
local slices, extra = {}, 0
for i = 1, n do
  if string.sub(units, i, i) < 'a' then
    extra = extra + 1
    slices[i] = ARGV[6 + n + extra]
    got[2 + 2 * i] = redis.call('HGET', KEYS[2 + 2 * i], 'n')
    got[3 + 2 * i] = got[2 + 2 * i]
  end
end
redis.call('XLEN', KEYS[5 + 2 * n])
redis.call('ZREM', leases, id)  -- Redis runs it at maxmemory too, and so all after it (protocol 8)
redis.call('XADD', KEYS[5 + 2 * n], '*', 'i', id, 's', 'e', 'd', ARGV[4])
redis.call('SET', KEYS[3], ARGV[3] .. string.sub(R, 2), 'PX', ARGV[5])
for i = 1, n do
  local u, r, held = KEYS[2 + 2 * i], KEYS[3 + 2 * i], ARGV[6 + i]
  if got[2 + 2 * i] and got[3 + 2 * i] and held ~= '0' then
    local slice, at = slices[i], tonumber(got[2 + 2 * i])
    local counted = slice and tonumber(slice) >= at - 62 and tonumber(slice) <= at + 60
    local function add(field, key, amount)
      if not slice then return redis.call('INCRBY', key, amount) end
      redis.call('HINCRBY', u, field .. ':' .. slice, amount)
      if counted then redis.call('HINCRBY', u, field, amount) end
    end
    add('r', r, '-' .. held)
    if ARGV[3] == 'X' then add('u', u, held) end
  end
end
return {'expired'}
