-- Count what no hold covers, once. Keys: what remembers that it was counted, and the scope's counts.
-- The body is [1, metric to units, limit's name, amount, ...] for a scope, and [0, ...] for a bare key, which
-- counts in every other limit of tokens that still counts too. Twin: MemoryStore.add.

local scopes = use('scopes')

-- The limits to count in, by name: of each its amount, which for a bare key is that of the last write.
local function limits_of(body, scope, now)
  local limits = {}
  if body[1] == 0 then
    for name, state in pairs(scope.states) do
      if scopes.kind_of(name).metric == 't' and scopes.live(scope, name, now) then
        limits[name] = state[4] or 0
      end
    end
  end
  for part = 3, #body, 2 do
    local amount = body[part + 1]
    limits[body[part]] = limits[body[part]] or (type(amount) == 'table' and amount[1] or amount)
  end
  return limits
end

return function(message)
  local body, now = cjson.decode(message.body), message.now
  local once, scope = message.next_key(), scopes.load(message.next_key())
  now = max(now, scope.at)
  local known = call('GET', once)
  local mark = known and cjson.decode(known)
  if mark and mark[1] > now then
    return mark[2] == message.id and 'counted' or 'repeated'
  end
  local counted = false
  for name, amount in pairs(limits_of(body, scope, now)) do
    local kind = scopes.kind_of(name)
    local units = body[2][kind.metric] or 0
    if units > 0 then
      scope.states[name] = kind.rules.debit(kind, amount, scope.states[name], units, now)
      counted = true
    end
  end
  if not counted then
    return 'nothing'
  end
  scopes.render(scope, now)
  scopes.write(scope)
  call('SET', once, format('[%d,"%s"]', now + KEEP, message.id), 'PX', ttl(now + KEEP))
  return 'counted'
end
