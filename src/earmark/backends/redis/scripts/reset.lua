-- Forget counts; open holds on them then have nothing to give back, for as long as a reservation is kept.
-- Keys: what remembers that it was done, then as for a peek. Twin: MemoryStore.reset.

local scopes = use('scopes')

local function forget(scope, name, now)
  local state = scopes.live(scope, name, now)
  if not state then
    return false
  end
  local kind, mark = scopes.kind_of(name), '!' .. name
  local over = min(max(now + KEEP, kind.rules.ends(kind, state)), MAX_AMOUNT)
  scope.states[mark] = {mark, scopes.generation(scope, name, now) + 1, over}
  scope.states[name] = nil
  return true
end

return function(message)
  local body, once = cjson.decode(message.body), message.next_key()
  local loaded, now = use('admission').load_scopes(message, body, message.now)
  if call('EXISTS', once) == 1 then
    return 'done'
  end
  for _, scope in ipairs(loaded) do
    local changed = false
    for part = 3, #scope.parts, 2 do
      if scope.parts[part] ~= 'c' then
        changed = forget(scope, scope.parts[part], now) or changed
      end
    end
    if changed then
      scopes.save(scope, now)
    end
  end
  call('SET', once, '', 'PX', ttl(HORIZON))
  return 'done'
end
