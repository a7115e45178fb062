-- Gate: keep every script that moves a counter waiting, while one caller reads the ledger.
--
-- KEYS  {ta}:gate      ARGV  1 "<token>"  2 "5000" for how long at most, milliseconds; "0" opens it
-- Returns 1 if the gate is (or was) this caller's, else 0.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  if holder then redis.call('DEL', KEYS[1]) end
  return holder and 1 or 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
