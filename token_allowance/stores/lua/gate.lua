-- Gate: keep every script that moves a counter waiting, while one caller reads the ledger.
--
-- KEYS  {ta}:gate      ARGV  1 "<token>"  2 "5000" for how long at most, milliseconds
--                            3 "take", "keep" or "open"
-- Returns 1 if the gate is (or was) this caller's, else 0. Who lost it cannot keep it: whatever moved
-- meanwhile is not in what that caller has read.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if not holder and ARGV[3] ~= 'take' then return 0 end
if ARGV[3] == 'open' then
  redis.call('DEL', KEYS[1])
  return 1
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
