-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [the record of the id, where the caller chose a name], then the counts of each scope and, where
-- it limits concurrency, its slots. Twin: MemoryStore.reserve.

local admission, records = use('admission'), use('records')
local scopes_file = use('scopes')
local kind_of = scopes_file.kind_of

-- Compute the debits of one scope, of whose limits the first has this number; returns the last number.
local function debit(scope, asked, number, id, lease, now)
  local parts, states = scope.parts, scope.states
  for part = 3, #parts, 2 do
    number = number + 1
    local name, amount, ask = parts[part], parts[part + 1], asked[number]
    if name == 'c' then
      scope.others = use('slots').last(scope.slots, id)
      scope.lasts = max(scope.others, now + lease)
      scope.changed = true
    elseif ask then
      local kind = kind_of(name)
      amount = type(amount) == 'table' and amount[1] or amount
      states[name] = kind.rules.debit(kind, amount, states[name], ask, now)
      scope.changed = true
    end
  end
  if scope.changed then
    scopes_file.render(scope, now)
  end
  return number
end

return function(message)
  local id, body, now = message.id, cjson.decode(message.body), message.now
  local key = message.next_key()
  local record = records.load(key, now)
  local known = (record or message.named) and use('names').answer(message, record, body)
  if known then
    return known
  end
  local scopes
  scopes, now = admission.load_scopes(message, body, now)
  local seen, asked, generations, refused = admission.judge(scopes, body[2], now)
  if refused then
    return format('refused %d %s', now, seen)
  end
  local number = 0
  for _, scope in ipairs(scopes) do
    number = debit(scope, asked, number, id, body[1], now)
  end
  -- All is read and computed. Slots come first, since they end by themselves.
  for _, scope in ipairs(scopes) do
    if scope.slots then
      use('slots').take(scope.slots, id, body[1], scope.others, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      scopes_file.write(scope)
    end
  end
  records.write(key, message.named and id, now, 0, false, message.again, seen, generations, message.body)
  return format('held %d %s', now, seen)
end
