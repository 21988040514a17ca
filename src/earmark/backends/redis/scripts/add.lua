-- Count what no hold covers, once. Keys: what remembers that it was counted, and the scope's counts.
-- The body is [1, metric to units, limit's name, amount, ...] for a scope, and [0, ...] for a bare key, which
-- counts in every other limit of tokens that still counts too. Twin: MemoryStore.add.

-- The limits to count in, by name: of each its amount, which for a bare key is that of the last write.
local function limits_of(body, scope, now)
  local limits = {}
  if body[1] == 0 then
    local counts, at = scope.counts, 2
    while at <= #counts do
      local kind = kind_of(counts[at])
      if kind.metric == 't' and kind.rules.ends(kind, counts, at) > now then
        limits[counts[at]] = kind.rules.bursts and counts[at + 3] or 0
      end
      at = at + 1 + kind.rules.numbers
    end
  end
  for part = 3, #body, 2 do
    local amount = body[part + 1]
    limits[body[part]] = limits[body[part]] or (type(amount) == 'table' and amount[1] or amount)
  end
  return limits
end

local function answer_message()
  local body, once = cjson.decode(text), next_key()
  local scope, latest = load_scope(next_key())
  local now = max(clock, latest)
  local mark = call('GET', once)
  local over, counter = match(mark or '', '^(%d+) (.*)$')
  if mark and over + 0 > now then
    return counter == id and 'counted' or 'repeated'
  end
  for name, amount in pairs(limits_of(body, scope, now)) do
    local kind = kind_of(name)
    local units = body[2][kind.metric] or 0
    if units > 0 then
      debit(scope, kind, name, amount, place_of(scope, name), units, now)
    end
  end
  if not scope.changed then
    return 'nothing'
  end
  render(scope, 0, now)
  write_scope(scope)
  call('SET', once, format('%d %s', now + KEEP, id), 'PX', ttl(now + KEEP))
  return 'counted'
end
