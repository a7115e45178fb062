-- Reserve: take the needs from every counter, or from none.
--
-- KEYS  {ta}:m {ta}:version {ta}:lease {ta}:hold {ta}:gate {ta}:queue {ta}7:r:<id>
--       then two per budget:   {ta}7:c:<digest>:u {ta}7:c:<digest>:r
--       (a rolling budget: its hash twice)
--       then {ta}7:leases {ta}:events {ta}7:i:<digest>   (without an idempotency key: R again)
--       then {ta}7:q:<digest> per budget, then {ta}7:o:<window> per budget, as ARGV 3 says
-- ARGV  1 "7:<run id>"             epoch and server that the caller means
--       2 "1764477600000000"       its policy version
--       3 ""                       "c": it has just read that version from the database; "q": KEYS name
--                                  the queues, one per budget; "o": KEYS name the lists of opened
--                                  counters, one per budget, after them; "d": a cheaper plan is at
--                                  hand, and limits say from which level on it is to be asked for
--       4 'R|[80000,2024,93],[["8|tenant=acme|cost|day/1/UTC|20261130T000000Z","cost",80000,0]]'
--       5 "600000"                 lease, milliseconds
--       6 '{"id":…,"state":"reserved"}'   the ledger row
--       7 "ctK"                    a letter per budget: cost, tokens, calls; capital: it rolls
--       8 "80000" 9 "2024" 10 "1"  what the call needs in these units
--       11 '["would_refuse"]'      its flags if a soft limit would have refused
--       12 "019…"                  the ticket with which it waits, "" if it does not
--       13 "5000000"               events that may wait for the ledger
--       14… "500000"               a limit per budget; "~500000" only notes, "!5" is a cap, "" counts;
--                                  with "d" also "500000:450000", its level
--       …   "29384"                a slice per rolling budget
--       and with "o", four per budget:
--       "1"                        its window began while we were counting: missing is zero
--       "9|global|cost|day/1/UTC|20261130T000000Z"   how the list of opened counters names it
--       "1764477600000000"         the generation it is counted in
--       "172800000"                how long it is kept, milliseconds; "0" for ever
-- Returns {"admitted"}, {"repeat"}, {"wait"}, {"stale", m}, {"older", version}, {"confirm"}, {"full"},
--       {"open", i…}: counters that are missing. One that was opened and is gone was lost: it is never
--       begun at zero, but seeded (case C61),
--       {"degrade", "0", i, u, r…}: these budgets have reached their level,
--       {"queued"}: somebody waits for room: ask again with the queues,
--       {"refused", rank, i, used, reserved…}: rank others stand before it in a queue (protocol 15).
local units, n, words, ticket = ARGV[7], #ARGV[7], ARGV[3], ARGV[12]
local got = redis.call('MGET', unpack(KEYS, 1, 7 + 2 * n))
if got[5] then return {'wait'} end
if got[1] ~= ARGV[1] then return {'stale', got[1] or ''} end
if got[2] ~= ARGV[2] then return {'older', got[2] or ''} end
local confirmed, in_queues, opens, degrades
if words ~= '' then
  confirmed = string.find(words, 'c', 1, true)
  in_queues = string.find(words, 'q', 1, true)
  opens = string.find(words, 'o', 1, true)
  degrades = string.find(words, 'd', 1, true)
end
if not confirmed and (not got[3] or got[4]) then return {'confirm'} end
if got[7] then return {got[7] == ARGV[4] and 'admitted' or 'repeat'} end
local idem = KEYS[10 + 2 * n] ~= KEYS[7] and KEYS[10 + 2 * n]
if idem and redis.call('EXISTS', idem) == 1 then return {'repeat'} end
if got[6] and not in_queues then return {'queued'} end
if redis.call('XLEN', KEYS[9 + 2 * n]) > tonumber(ARGV[13]) then return {'full'} end

local needs = {c = ARGV[8], t = ARGV[9], k = ARGV[10], C = ARGV[8], T = ARGV[9], K = ARGV[10]}
local rolling, missing, refused, reached, noted, held = 0, nil, nil, nil, false, true
local turned, opened, first_open, blocking
local queues = 10 + 2 * n
local lists = in_queues and queues + n or queues
if opens then first_open = 13 + n + #string.gsub(units, '%l', '') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rank = 0
-- How many have waited for this budget longer than the caller, and still do.
local before = in_queues and function(i)
  local found, all = 0, redis.call('HGETALL', KEYS[queues + i])
  for j = 1, #all, 2 do
    if all[j] ~= ticket and (ticket == '' or all[j] < ticket) and tonumber(all[j + 1]) > now then
      found = found + 1
    end
  end
  return found
end
for i = 1, n do
  local unit = string.sub(units, i, i)
  local u, r = got[6 + 2 * i], got[7 + 2 * i]
  if unit < 'a' then
    local hash, slice = KEYS[6 + 2 * i], ARGV[13 + n + rolling + 1]
    rolling = rolling + 1
    local kept = redis.call('HMGET', hash, 'n', 'u', 'r', 'w')
    u, r = kept[2], kept[3]
    if kept[1] and kept[1] ~= slice then
      -- Another slice than the totals are of: sum the 62 before it and the 60 after it anew.
      local all, first, used, reserved = redis.call('HGETALL', hash), tonumber(slice), 0, 0
      local kept_from = math.min(first, math.floor(now * 1000 / kept[4])) - 126
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
      turned = turned or {}
      turned[i] = {hash, slice, u, r, old}
    end
  end
  if not u or not r then
    local fresh, name, since, lasts
    if opens then
      fresh, name, since, lasts = unpack(ARGV, first_open + 4 * i - 3, first_open + 4 * i)
    end
    local list = KEYS[lists + i]
    if fresh == '1' and redis.call('HEXISTS', list, name) == 0 then
      u, r = '0', '0'
      opened = opened or {}
      opened[#opened + 1] = {KEYS[6 + 2 * i], KEYS[7 + 2 * i], list, name, since, lasts}
    else
      missing = missing or {'open'}
      missing[#missing + 1] = i
    end
  end
  if u and r then
    local need, limit = needs[unit], ARGV[13 + i]
    local level = degrades and string.match(limit, ':(%d+)$')
    if level then
      limit = string.match(limit, '^[^:]+')
      if tonumber(u) >= tonumber(level) then
        reached = reached or {'degrade', '0'}
        reached[#reached + 1] = i
        reached[#reached + 1] = u
        reached[#reached + 1] = r
      end
    end
    if limit ~= '' and need ~= '0' then
      local mark, others = string.byte(limit), 0
      local soft, cap = mark == 126, mark == 33  -- '~', '!'
      limit = tonumber((soft or cap) and string.sub(limit, 2) or limit)
      local over = u + r + need > limit
      if in_queues and not soft then others = before(i) end
      if over and soft then
        noted = true
      elseif over or others > 0 then
        refused = refused or {'refused', '0'}
        refused[#refused + 1] = i
        refused[#refused + 1] = u
        refused[#refused + 1] = r
        if cap or u + need > limit then held = false end
        if others > rank then rank = others end
        blocking = blocking or {}
        blocking[#blocking + 1] = KEYS[queues + i]
      end
    end
  end
end
if missing then return missing end
if reached then return reached end
if refused then
  if held and ticket ~= '' and in_queues then
    for _, queue in ipairs(blocking) do
      redis.call('HSET', queue, ticket, string.format('%.0f', now + 3000))
      redis.call('PEXPIRE', queue, 4000)
    end
    redis.call('SET', KEYS[6], 1, 'PX', 4000)
  end
  refused[2] = tostring(rank)
  return refused
end

local row = ARGV[6]
if noted then row = string.sub(row, 1, -2) .. ',"flags":' .. ARGV[11] .. '}' end
local id = string.sub(KEYS[7], -36)
-- Each key has been read, or is written first: a script is not undone where it fails (protocol 9).
redis.call('ZADD', KEYS[8 + 2 * n], string.format('%.0f', now + ARGV[5]), id)
redis.call('XADD', KEYS[9 + 2 * n], '*', 'i', id, 's', 'r', 'd', row)
redis.call('SET', KEYS[7], ARGV[4])
for _, o in ipairs(opened or {}) do
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
    local hash, slice, turn = KEYS[6 + 2 * i], ARGV[13 + n + slices + 1], turned and turned[i]
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
if ticket ~= '' and in_queues then
  for i = 1, n do redis.call('HDEL', KEYS[queues + i], ticket) end
end
if idem then redis.call('SET', idem, id, 'PX', 604800000) end
return {'admitted'}
