-- Settle or release: replace what a reservation holds by what was used, even if that is more.
--
-- KEYS  {ta}:m {ta}:gate {ta}7:r:<id>
--       then two per hold:     {ta}7:c:<digest>:u {ta}7:c:<digest>:r   (rolling: its hash twice)
--       then {ta}7:leases {ta}:events {ta}7:i:<digest>   (without an idempotency key: the third again)
--       and in mode "U" one per hold: {ta}7:o:<window>
-- ARGV  1 "7:<run id>"             epoch and server that the caller means
--       2 '[80000,2024,93],[["8|tenant=…","cost",80000,0]]'   the holds that it knows of
--       3 "S|62000|1180|212"       what is remembered of this end; "V" a release
--       4 ""                       "U": the ledger has no end of this reservation; charge it
--                                  "X": the ledger says that it expired and was charged
--       5 '{"id":…,"state":"settled"}'   the ledger row
--       6 "ctK"                    a letter per hold, as in reserve.lua
--       7 "62000" 8 "1392" 9 "1"   what was used in these units
--       10 "3600000"               how long the end is remembered, milliseconds
--       11… "80000"                the amount held, per hold
--       …   "29384"                a slice per rolling hold
--       …   name, generation       per hold, in mode "U"
-- Returns {"settled"}, {"late"}, {"repeat"}, {"conflict"}, {"unknown"}, {"wait"}, {"stale", m},
--       {"holds", R}: it holds something else, ask again with that.
-- A counter that is missing was lost: it is never made here (protocol 1), but seeded later.
local units, n = ARGV[6], #ARGV[6]
local got = redis.call('MGET', unpack(KEYS, 1, 3 + 2 * n))
if got[2] then return {'wait'} end
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
local R, final, mode, id = got[3], ARGV[3], ARGV[4], string.sub(KEYS[3], -36)
local released = string.sub(final, 1, 1) == 'V'
local kind = R and string.sub(R, 1, 1)
if not R then
  if mode == '' and released then mode = 'V' end
  if mode == '' then return {'unknown'} end
elseif kind == 'S' or kind == 'V' or (kind == 'E' and released) then
  if released or R == final then return {'repeat'} end
  redis.call('XADD', KEYS[5 + 2 * n], '*', 'i', id, 's', 'c', 'd', '{}')
  return {'conflict'}
elseif string.sub(R, 3) ~= ARGV[2] then
  return {'holds', R}
else
  mode = kind
end
local slices, extra, base = nil, 0, 10 + n
for i = 1, n do
  if string.sub(units, i, i) < 'a' then
    slices = slices or {}
    slices[i] = ARGV[base + extra + 1]
    extra = extra + 1
    got[2 + 2 * i] = redis.call('HGET', KEYS[2 + 2 * i], 'n')
    got[3 + 2 * i] = got[2 + 2 * i]
  end
end
base = base + extra

-- The first write is one that Redis runs at maxmemory too, and so do all after it (protocol 8). It
-- fails, as XLEN does, before anything has moved if its key is of another type (protocol 9).
redis.call('XLEN', KEYS[5 + 2 * n])
redis.call('ZREM', KEYS[4 + 2 * n], id)
redis.call('XADD', KEYS[5 + 2 * n], '*', 'i', id, 's', released and 'v' or 's', 'd', ARGV[5])
redis.call('SET', KEYS[3], final, 'PX', ARGV[10])
local idem = KEYS[6 + 2 * n]
if released and idem ~= KEYS[3] and redis.call('GET', idem) == id then
  redis.call('DEL', idem)
end
local actual = {c = ARGV[7], t = ARGV[8], k = ARGV[9], C = ARGV[7], T = ARGV[8], K = ARGV[9]}
for i = 1, n do
  local u, r, unit = KEYS[2 + 2 * i], KEYS[3 + 2 * i], string.sub(units, i, i)
  local used, held = actual[unit], ARGV[10 + i]
  if got[2 + 2 * i] and got[3 + 2 * i] then
    if slices and slices[i] then
      local slice, at = slices[i], tonumber(got[2 + 2 * i])
      local counted = tonumber(slice) >= at - 62 and tonumber(slice) <= at + 60
      local function add(field, amount)
        redis.call('HINCRBY', u, field .. ':' .. slice, amount)
        if counted then redis.call('HINCRBY', u, field, amount) end
      end
      if used ~= '0' then add('u', used) end
      if mode == 'R' and held ~= '0' then add('r', '-' .. held) end
      if mode == 'X' and held ~= '0' then add('u', '-' .. held) end
    else
      if mode == 'R' and held ~= '0' then redis.call('DECRBY', r, held) end
      if mode == 'X' and held ~= '0' then redis.call('DECRBY', u, held) end
      if used ~= '0' then redis.call('INCRBY', u, used) end
    end
  elseif mode == 'U' and not (slices and slices[i]) then
    -- Not counted yet: a mark that the next reserve must seed it, and not begin at zero.
    redis.call('HSETNX', KEYS[6 + 2 * n + i], ARGV[base + 2 * i - 1], ARGV[base + 2 * i])
  end
end
if mode == 'R' then return {'settled'} end
return {'late'}
