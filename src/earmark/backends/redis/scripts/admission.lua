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

-- Judge every limit. Returns what was seen, what is asked of each limit (false: nothing, the limit is not judged), the
-- generations of limits that were reset, and whether one refused.
local function judge(scopes, asks, now)
  local seen, asked, generations, refused = {}, {}, {}, false
  local number = 0
  for _, scope in ipairs(scopes) do
    local parts = scope.parts
    for part = 3, #parts, 2 do
      local name, amount, ask, in_use = parts[part], parts[part + 1], 1, 0
      local capacity = amount
      if type(amount) == 'table' then
        amount, capacity = amount[1], amount[2]
      end
      number = number + 1
      if name == 'c' then
        in_use = use('slots').live(scope.slots, now)
        seen[number] = format('%d', in_use)
      else
        local kind = kind_of(name)
        in_use, seen[number] = kind.rules.see(kind, amount, scope.states[name], now)
        ask = asks[kind.metric] or unasked[kind.metric] or false
        if scope.marked then
          local resets = generation(scope, name, now)
          generations[number] = resets > 0 and resets or nil
        end
      end
      asked[number] = ask
      if ask and parts[2] == 1 and in_use + max(ask, 1) > capacity then
        refused = true
      end
    end
  end
  return seen, asked, generations, refused
end

return {load_scopes = load_scopes, judge = judge}
