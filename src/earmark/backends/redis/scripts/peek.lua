-- Read the state of every limit at one instant. Keys: the counts of each scope and, where it limits concurrency, its
-- slots. The body is that of a reserve. Twin: MemoryStore.peek.

local function answer_message()
  local body = cjson.decode(text)
  local scopes, now = load_scopes(body)
  local seen = judge(scopes, body[2], now)
  return 'seen ' .. seen
end
