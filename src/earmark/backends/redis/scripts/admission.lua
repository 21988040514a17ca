-- Admission over many limits of many scopes. Twin: earmark.core.admission.

local scopes_file, unasked = use('scopes'), use('metrics').unasked
local kind_of, generation = scopes_file.kind_of, scopes_file.generation

-- The scopes of a message with what is counted under them, and the instant of the request.
local function load_scopes(message, body, now)
  local scopes = {}
  for position = 3, #body do
    local parts = body[position]
    local scope = scopes_file.load(message.next_key())
    scope.parts = parts
    for part = 3, #parts, 2 do
      if parts[part] == 'c' then
        scope.slots = message.next_key()
      end
    end
    if scope.at > now then
      now = scope.at
    end
    scopes[position - 2] = scope
  end
  return scopes, now
end

-- Judge every limit; calls `debit` with what is to be debited of which. Returns what was seen, the generations of
-- limits that were reset, and whether one refused.
local function judge(scopes, asks, now, debit)
  local seen, generations, refused = {}, {}, false
  for _, scope in ipairs(scopes) do
    local parts = scope.parts
    for part = 3, #parts, 2 do
      local name, amount = parts[part], parts[part + 1]
      local capacity, ask, in_use = amount, 1, 0
      if type(amount) == 'table' then
        amount, capacity = amount[1], amount[2]
      end
      if name == 'c' then
        in_use = use('slots').live(scope.slots, now)
        seen[#seen + 1] = format('%.0f', in_use)
        debit(scope)
      else
        local kind, state = kind_of(name), scope.states[name]
        seen[#seen + 1] = kind.rules.tell(kind, state, now)
        ask = asks[kind.metric] or unasked[kind.metric]
        if ask then
          in_use = kind.rules.used(kind, amount, state, now)
          debit(scope, kind, amount, ask)
        end
        if scope.marked then
          local number = generation(scope, name, now)
          generations[#seen] = number > 0 and number or nil
        end
      end
      if ask and parts[2] == 1 and in_use + max(ask, 1) > capacity then
        refused = true
      end
    end
  end
  return table.concat(seen, ' '), generations, refused
end

return {load_scopes = load_scopes, judge = judge}
