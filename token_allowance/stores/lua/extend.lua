-- Extend: a longer lease, and more held in each counter that the reservation counts in, or nothing.
--
-- KEYS  {ta}:m {ta}:gate {ta}7:r:<id>
--       then two per hold:     {ta}7:c:<digest>:u {ta}7:c:<digest>:r   (rolling: its hash twice)
--       then {ta}7:leases {ta}:events
-- ARGV  1 "7:<run id>"
--       2 'R|[[…,"cost",80000,0]]'   what it holds now, as far as the caller knows
--       3 'R|[[…,"cost",90000,0]]'   what it will hold
--       4 "600000"                 lease from now, milliseconds
--       5 '{"reserved_micros":90000,…}'  the event: what it will hold altogether
--       6 "ctK"                    a letter per hold, as in reserve.lua
--       7 "10000" 8 "500" 9 "0"    how much more, in these units
--       10… "500000"               a limit per hold; "" where nothing refuses
--       …   "29384"                a slice per rolling hold
-- Returns {"extended"}, {"refused", i, used, reserved}, {"gone"}, {"holds", R}, {"wait"}, {"stale", m}.
local units, n = ARGV[6], #ARGV[6]
local got = redis.call('MGET', unpack(KEYS, 1, 3 + 2 * n))
if got[2] then return {'wait'} end
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
local R = got[3]
if not R or string.sub(R, 1, 1) ~= 'R' then return {'gone'} end
if R == ARGV[3] and R ~= ARGV[2] then return {'extended'} end
if R ~= ARGV[2] then return {'holds', R} end
local more = {c = ARGV[7], t = ARGV[8], k = ARGV[9], C = ARGV[7], T = ARGV[8], K = ARGV[9]}
local slices, ats, extra = {}, {}, 0
for i = 1, n do
  local unit = string.sub(units, i, i)
  local u, r = got[2 + 2 * i], got[3 + 2 * i]
  if unit < 'a' then
    extra = extra + 1
    local slice = ARGV[9 + n + extra]
    slices[i] = slice
    local kept = redis.call('HMGET', KEYS[2 + 2 * i], 'n', 'u', 'r')
    ats[i], u, r = kept[1], kept[2], kept[3]
    if ats[i] and ats[i] ~= slice then
      local all, first, used, reserved = redis.call('HGETALL', KEYS[2 + 2 * i]), tonumber(slice), 0, 0
      for j = 1, #all, 2 do
        local kind, number = string.match(all[j], '^([ur]):(-?%d+)$')
        number = tonumber(number)
        if kind and number >= first - 62 and number <= first + 60 then
          if kind == 'u' then used = used + tonumber(all[j + 1])
          else reserved = reserved + tonumber(all[j + 1]) end
        end
      end
      u, r = string.format('%.0f', used), string.format('%.0f', reserved)
    end
    got[2 + 2 * i], got[3 + 2 * i] = ats[i], ats[i]
  end
  local limit = ARGV[9 + i]
  if u and r and limit ~= '' and more[unit] ~= '0'
      and tonumber(u) + tonumber(r) + tonumber(more[unit]) > tonumber(limit) then
    return {'refused', i, u, r}
  end
end

-- Every key is read before the first write: a script that fails half-way is not undone (protocol 9).
local id = string.sub(KEYS[3], -36)
local before = redis.call('ZSCORE', KEYS[4 + 2 * n], id)
local event = redis.call('XADD', KEYS[5 + 2 * n], '*', 'i', id, 's', 'x', 'd', ARGV[5])
redis.call('SET', KEYS[3], ARGV[3])
for i = 1, n do
  local unit = string.sub(units, i, i)
  if got[2 + 2 * i] and got[3 + 2 * i] and more[unit] ~= '0' then
    if slices[i] then
      local hash, at, slice = KEYS[2 + 2 * i], tonumber(ats[i]), tonumber(slices[i])
      redis.call('HINCRBY', hash, 'r:' .. slices[i], more[unit])
      if slice >= at - 62 and slice <= at + 60 then redis.call('HINCRBY', hash, 'r', more[unit]) end
    else
      redis.call('INCRBY', KEYS[3 + 2 * i], more[unit])
    end
  end
end
local lease = string.match(event, '^%d+') + ARGV[4]
if not before or tonumber(before) < lease then
  redis.call('ZADD', KEYS[4 + 2 * n], lease, id)
end
return {'extended'}
