-- Forget counts; open holds on them then have nothing to give back.
-- Keys: what remembers that it was done, then as for a peek. Twin: MemoryStore.reset.

-- Generations are instants, so that none comes again when the reset before it is over.
local function forget(scope, name, now)
  local kind, state = kind_of(name), scope.states[name]
  local rules = kind.rules
  local over = rules.returns_until(kind, state and rules.ends(kind, state) > now and state, now)
  if not over then
    return false
  end
  local generation = use(resets).generation_of(scope, name, now)
  scope.resets = scope.resets or {}
  scope.resets[name] = {max(now, generation + 1), min(over, MAX_AMOUNT)}
  scope.states[name] = nil
  return true
end

local function answer_message()
  local body, once = cjson.decode(text), next_key()
  local scopes, now = load_scopes(body)
  if call('EXISTS', once) == 1 then
    return 'done'
  end
  for _, scope in ipairs(scopes) do
    for part = 2, #scope.parts - 1, 2 do
      if scope.parts[part] ~= 'c' then
        scope.changed = forget(scope, scope.parts[part], now) or scope.changed
      end
    end
    if scope.changed then
      render(scope, 0, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      write_scope(scope)
    end
  end
  call('SET', once, '', 'PX', ttl(now + HORIZON))
  return 'done'
end
