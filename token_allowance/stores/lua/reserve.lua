-- Reserve: take the needs from every counter, or from none.
--
-- KEYS  {ta}:m {ta}:version {ta}:lease {ta}:hold {ta}:gate {ta}:queue {ta}7:r:<id>
--       then two per budget:   {ta}7:c:<digest>:u {ta}7:c:<digest>:r
--       (a rolling budget: its hash twice)
--       then {ta}7:leases {ta}:events {ta}7:i:<digest>   (without an idempotency key: R again)
--       and to open counters, one per budget: {ta}7:o:<window>
-- ARGV  1 "7:<run id>"             epoch and server that the caller means
--       2 "1764477600000000"       its policy version
--       3 "0"                      "1": it has just read that version from the database
--       4 'R|[80000,2024,93],[["8|tenant=acme|cost|day/1/UTC|20261130T000000Z","cost",80000,0]]'
--       5 "600000"                 lease, milliseconds
--       6 '{"id":…,"state":"reserved"}'   the ledger row
--       7 "ctK"                    a letter per budget: cost, tokens, calls; capital: it rolls
--       8 "80000" 9 "2024" 10 "1"  what the call needs in these units
--       11 "[\"would_refuse\"]"    its flags if a soft limit would have refused
--       12… "500000"               a limit per budget; "~500000" only notes, "" only counts
--       …   "29384"                a slice per rolling budget
--       and to open counters, four per budget:
--       "1"                        its window began while we were counting: missing is zero
--       "9|global|cost|day/1/UTC|20261130T000000Z"   how the list of opened counters names it
--       "1764477600000000"         the generation it is counted in
--       "172800000"                how long it is kept, milliseconds; "0" for ever
-- Returns {"admitted"}, {"repeat"}, {"wait"}, {"stale", m}, {"older", version}, {"confirm"},
--       {"open", i…}: counters that are missing. One that was opened and is
--       gone was lost: it is never begun at zero, but seeded (case C61), {"refused", i, used, reserved…},
--       {"queued"}: others wait for room, so look at the queues first.
local units, n = ARGV[7], #ARGV[7]
local got = redis.call('MGET', unpack(KEYS, 1, 7 + 2 * n))
if got[5] then return {'wait'} end
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
if got[2] ~= ARGV[2] then return {'older', got[2] or ''} end
if ARGV[3] == '0' and (not got[3] or got[4]) then return {'confirm'} end
if got[7] then return {got[7] == ARGV[4] and 'admitted' or 'repeat'} end
local idem = KEYS[10 + 2 * n] ~= KEYS[7] and KEYS[10 + 2 * n]
if idem and redis.call('EXISTS', idem) == 1 then return {'repeat'} end
if got[6] and ARGV[3] ~= '2' then return {'queued'} end

local needs = {c = ARGV[8], t = ARGV[9], k = ARGV[10], C = ARGV[8], T = ARGV[9], K = ARGV[10]}
local rolling, missing, refused, noted = 0, nil, nil, false
local turned, opened = {}, {}
local first_open = 11 + n + #string.gsub(units, '%l', '')
for i = 1, n do
  local unit = string.sub(units, i, i)
  local u, r = got[6 + 2 * i], got[7 + 2 * i]
  if unit < 'a' then
    local hash, slice = KEYS[6 + 2 * i], ARGV[11 + n + rolling + 1]
    rolling = rolling + 1
    local kept = redis.call('HMGET', hash, 'n', 'u', 'r', 'w')
    u, r = kept[2], kept[3]
    if kept[1] and kept[1] ~= slice then
      -- Another slice than the totals are of: sum the 62 before it and the 60 after it anew.
      local all, first, used, reserved = redis.call('HGETALL', hash), tonumber(slice), 0, 0
      local now = redis.call('TIME')
      local kept_from = math.min(first, math.floor((now[1] * 1000000 + now[2]) / kept[4])) - 126
      local old = {}
      for j = 1, #all, 2 do
        local kind, number = string.match(all[j], '^([ur]):(-?%d+)$')
        if kind then
          number = tonumber(number)
          if number >= first - 62 and number <= first + 60 then
            if kind == 'u' then used = used + tonumber(all[j + 1])
            else reserved = reserved + tonumber(all[j + 1]) end
          elseif number < kept_from then
            old[#old + 1] = all[j]
          end
        end
      end
      u, r = string.format('%.0f', used), string.format('%.0f', reserved)
      turned[i] = {hash, slice, u, r, old}
    end
  end
  if not u or not r then
    local fresh, name, since, lasts = unpack(ARGV, first_open + 4 * i - 3, first_open + 4 * i)
    local list = KEYS[10 + 2 * n + i]
    if fresh == '1' and redis.call('HEXISTS', list, name) == 0 then
      u, r = '0', '0'
      opened[#opened + 1] = {KEYS[6 + 2 * i], KEYS[7 + 2 * i], list, name, since, lasts}
    else
      missing = missing or {'open'}
      missing[#missing + 1] = i
    end
  end
  if u and r then
    local need, limit = needs[unit], ARGV[11 + i]
    if limit ~= '' and need ~= '0' then
      local soft = string.sub(limit, 1, 1) == '~'
      if soft then limit = string.sub(limit, 2) end
      if tonumber(u) + tonumber(r) + tonumber(need) > tonumber(limit) then
        if soft then noted = true else
          refused = refused or {'refused'}
          refused[#refused + 1] = i
          refused[#refused + 1] = u
          refused[#refused + 1] = r
        end
      end
    end
  end
end
if missing then return missing end
if refused then return refused end

local row = ARGV[6]
if noted then row = string.sub(row, 1, -2) .. ',"flags":' .. ARGV[11] .. '}' end
local id = string.sub(KEYS[7], -36)
local event = redis.call('XADD', KEYS[9 + 2 * n], '*', 'i', id, 's', 'r', 'd', row)
redis.call('SET', KEYS[7], ARGV[4])
for _, o in ipairs(opened) do
  local first = redis.call('EXISTS', o[3]) == 0
  redis.call('HSET', o[3], o[4], o[5])
  if o[6] == '0' then
    redis.call('MSET', o[1], 0, o[2], 0)
  else
    redis.call('SET', o[1], 0, 'PX', o[6])
    redis.call('SET', o[2], 0, 'PX', o[6])
    if first then redis.call('PEXPIRE', o[3], o[6]) end
  end
end
local slices = 0
for i = 1, n do
  local unit = string.sub(units, i, i)
  if unit >= 'a' then
    redis.call('INCRBY', KEYS[7 + 2 * i], needs[unit])
  else
    local hash, slice, turn = KEYS[6 + 2 * i], ARGV[11 + n + slices + 1], turned[i]
    slices = slices + 1
    if turn then
      redis.call('HSET', hash, 'n', slice, 'u', turn[3], 'r', turn[4])
      if #turn[5] > 0 then redis.call('HDEL', hash, unpack(turn[5])) end
      redis.call('PEXPIRE', hash, redis.call('HGET', hash, 'ms'))
    end
    redis.call('HINCRBY', hash, 'r', needs[unit])
    redis.call('HINCRBY', hash, 'r:' .. slice, needs[unit])
  end
end
redis.call('ZADD', KEYS[8 + 2 * n], string.match(event, '^%d+') + ARGV[5], id)
if idem then redis.call('SET', idem, id, 'PX', 604800000) end
return {'admitted'}
