-- Read the state of every limit at one instant. Keys: the counts of each scope and, where it limits concurrency, its
-- slots. The body is that of a reserve. Twin: MemoryStore.peek.

local admission = use('admission')

return function(message)
  local body = cjson.decode(message.body)
  local scopes, now = admission.load_scopes(message, body, message.now)
  local seen = admission.judge(scopes, body[2], now)
  return format('seen %d %s', now, table.concat(seen, ' '))
end
