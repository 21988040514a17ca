-- Forget counts; open holds on them then have nothing to give back.
-- Keys: what remembers that it was done, then as for a peek. Twin: MemoryStore.reset.

-- Take so many out of a list, from one on.
local function leave_out(list, from, many)
  for at = from, #list do
    list[at] = list[at + many]
  end
end

-- Generations are instants, so that none comes again when the reset before it is over.
local function forget(scope, name, now)
  local kind, at = kind_of(name), place_of(scope, name)
  local rules = kind.rules
  local over = rules.returns_until(kind, at and rules.ends(kind, scope.counts, at) > now, now)
  if not over then
    return false
  end
  local generation = use('resets').generation_of(scope, name, now)
  scope.resets = scope.resets or {}
  scope.resets[name] = {max(now, generation + 1), min(over, MAX_AMOUNT)}
  if at then
    leave_out(scope.counts, at, rules.numbers + 1)
  end
  return true
end

local function answer_message()
  local body, once = cjson.decode(text), next_key()
  local scopes, now = load_scopes(body)
  if call('EXISTS', once) == 1 then
    return 'done'
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    for part = 2, #scope.parts - 1, 2 do
      if scope.parts[part] ~= 'c' then
        scope.changed = forget(scope, scope.parts[part], now) or scope.changed
      end
    end
    if scope.changed then
      render(scope, 0, now)
    end
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    if scope.changed then
      write_scope(scope)
    end
  end
  call('SET', once, '', 'PX', ttl(now + HORIZON))
  return 'done'
end
