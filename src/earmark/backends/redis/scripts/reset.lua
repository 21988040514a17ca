-- Forget counts; open holds on them then have nothing to give back.
-- Keys: what remembers that it was done, then as for a peek. Twin: MemoryStore.reset.

local scopes = use('scopes')

-- Generations are instants, so that none comes again when the mark of the one before is over.
local function forget(scope, name, now)
  local kind, state, mark = scopes.kind_of(name), scopes.live(scope, name, now), '!' .. name
  local over = kind.rules.returns_until(kind, state, now)
  if not over then
    return false
  end
  scope.states[mark] = {mark, max(now, scopes.generation(scope, name, now) + 1), min(over, MAX_AMOUNT)}
  scope.states[name] = nil
  scope.marked = true
  return true
end

return function(message)
  local body, once = cjson.decode(message.body), message.next_key()
  local loaded, now = use('admission').load_scopes(message, body, message.now)
  if call('EXISTS', once) == 1 then
    return 'done'
  end
  for _, scope in ipairs(loaded) do
    for part = 3, #scope.parts, 2 do
      if scope.parts[part] ~= 'c' then
        scope.changed = forget(scope, scope.parts[part], now) or scope.changed
      end
    end
    if scope.changed then
      scopes.render(scope, now)
    end
  end
  for _, scope in ipairs(loaded) do
    if scope.changed then
      scopes.write(scope)
    end
  end
  call('SET', once, '', 'PX', ttl(now + HORIZON))
  return 'done'
end
