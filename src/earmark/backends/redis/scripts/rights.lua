-- Run the command that the body names on a key where it changes nothing: a user who may not run it learns so before
-- anything is counted. Keys: one that may be lost.

local harmless = {
  DEL = function(key) return call('DEL', key) end,
  EXISTS = function(key) return call('EXISTS', key) end,
  GET = function(key) return call('GET', key) end,
  PEXPIRE = function(key) return call('PEXPIRE', key, 1) end,
  SET = function(key) return call('SET', key, '', 'XX', 'PX', 1) end,
  ZADD = function(key) return call('ZADD', key, 'XX', 0, '') end,
  ZCOUNT = function(key) return call('ZCOUNT', key, 0, 0) end,
  ZREM = function(key) return call('ZREM', key, '') end,
  ZREMRANGEBYSCORE = function(key) return call('ZREMRANGEBYSCORE', key, 0, 0) end,
  ZREVRANGE = function(key) return call('ZREVRANGE', key, 0, 0) end,
  ZSCORE = function(key) return call('ZSCORE', key, '') end,
}

local function answer_message()
  harmless[text](next_key())
  return 'allowed'
end
