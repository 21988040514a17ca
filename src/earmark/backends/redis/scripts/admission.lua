-- Admission over many limits of many scopes. Twin: earmark.core.admission.

-- The scopes of a message with what is counted under them, and the instant of the request. A message about a name has
-- no keys of scopes: those are on other nodes of a cluster, where parts of the reservation say the same.
local function load_scopes(body)
  local scopes, now = {}, clock
  for position = 3, used_keys < last_key and #body or 2 do
    local parts = body[position]
    local scope, latest = load_scope(next_key(), parts)
    for part = 2, #parts - 1, 2 do
      if parts[part] == 'c' then
        scope.slots = next_key()
      end
    end
    now = max(now, latest)
    scopes[position - 2] = scope
  end
  return scopes, now
end

-- Judge every limit, and compute the debits as if none refused. Returns the instant and what was seen, whether one refused,
-- where there are any, the generations of limits that were reset, by the position of the limit, and how much of what was
-- seen, and of the limits, is of the scopes up to the one with the number `last`.
local function judge(scopes, asks, now, last)
  local seen, refused, generations, position = instant(now), false, nil, 0
  local seen_before, limits_before
  for number = 1, #scopes do
    local scope = scopes[number]
    local parts, counts, expected = scope.parts, scope.counts, 2
    local enforced, told_of_scope, told = #parts % 2 == 1, '', ''
    for part = 2, #parts - 1, 2 do
      local name, amount, capacity, ask, in_use = parts[part], parts[part + 1]
      position, told_of_scope = position + 1, told_of_scope .. told
      if name == 'c' then
        in_use, ask, capacity = use('slots').live_slots(scope.slots, now), 1, amount
        told = format(' %d', in_use)
        scope.changed = true
      else
        local kind = kinds[name] or kind_of(name)
        local rules = kind.rules
        -- Mostly the states of a scope stand in the order of its limits.
        local at = counts[expected] == name and expected or place_of(scope, name)
        capacity = amount
        if rules.bursts then
          amount, capacity = amounts_of(amount)
        end
        in_use, told = rules.see(kind, amount, counts, at, now)
        ask = asks[kind.metric] or kind.unasked
        if ask then
          at = at or begin_at(counts, name)
          rules.debit(kind, amount, counts, at, ask, now)
          scope.changed = true
        end
        if at then
          expected = at + rules.numbers + 1
        end
        if scope.resets then
          local generation = use('resets').generation_of(scope, name, now)
          generations = generations or {}
          generations[position] = generation > 0 and generation or nil
        end
      end
      refused = refused or ask and enforced and in_use + (ask > 1 and ask or 1) > capacity
    end
    seen = seen .. told_of_scope .. told  -- by scopes: the whole is not copied for each limit of many
    if number == last then
      seen_before, limits_before = #seen, position
    end
  end
  return seen, refused, generations, seen_before, limits_before
end
