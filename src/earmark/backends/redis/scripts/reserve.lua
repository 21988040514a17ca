-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [the record of the id, where the caller chose a name], then the counts of each scope and, where
-- it limits concurrency, its slots. Twin: MemoryStore.reserve.

local admission, records = use('admission'), use('records')

-- The answer to what is open already: to the same message once more, or to another caller of the same name.
local function answer_again(message, record, body)
  local same = record.id == message.id
  if not same and not use('identity').repeats(body, cjson.decode(record.body)) then
    return 'conflict'
  end
  record.again = record.again or message.again
  record.adopted = record.adopted or not same
  records.save(record, message.now)
  if same then
    return format('held %.0f %s', record.at, record.seen)
  end
  return format('adopted %s %.0f %s\n%s', record.id, record.at, record.seen, record.body)
end

-- Whether the reservation was cancelled before this message came.
local function is_buried(message, record)
  if message.named then
    record = records.load(message.next_key(), message.now)
  end
  return record and record.buried
end

return function(message)
  local id, body, now = message.id, cjson.decode(message.body), message.now
  local key = message.next_key()
  local record = records.load(key, now)
  if is_buried(message, record) then
    return 'gone'
  end
  if record and not record.buried then
    return answer_again(message, record, body)
  end
  local scopes
  scopes, now = admission.load_scopes(message, body, now)
  local debits = {}
  local seen, generations, refused = admission.judge(scopes, body[2], now, function(...)
    debits[#debits + 1] = {...}
  end)
  if refused then
    return format('refused %.0f %s', now, seen)
  end
  for _, debit in ipairs(debits) do
    local scope, kind, amount, ask = debit[1], debit[2], debit[3], debit[4]
    if kind then
      scope.states[kind.name] = kind.rules.debit(kind, amount, scope.states[kind.name], ask, now)
    else
      scope.lasts = use('slots').take(scope.slots, id, body[1], now)
    end
    scope.changed = true
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      use('scopes').save(scope, now)
    end
  end
  records.save({
    key = key, own = not message.named, id = id, at = now, renewed = 0, again = message.again,
    seen = seen, generations = generations, body = message.body,
  }, now)
  return format('held %.0f %s', now, seen)
end
