-- Write: what a caller behind the gate has found out, if the gate is still its own.
--
-- KEYS  {ta}:gate, then the keys that the commands name, each once
-- ARGV  1 "<token>"  2 '[["SET", 2, "5"], ["HSET", 3, "u", "5"]]'   commands; the number of the key
--       in KEYS stands in the second place
-- Returns 1, or 0 if nothing was written.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for _, command in ipairs(cjson.decode(ARGV[2])) do
  command[2] = KEYS[command[2]]
  redis.call(unpack(command))
end
return 1
