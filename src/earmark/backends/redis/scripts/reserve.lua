-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [the record of the id, where the caller chose a name], then the counts of each scope and, where
-- it limits concurrency, its slots. Twin: MemoryStore.reserve.

-- The answer to what is open already: to the same message once more, or to another caller of the same name.
local function answer_again(record, body)
  local same = record.id == id
  if not same and not repeats(body, cjson.decode(record.body)) then
    return 'conflict'
  end
  record.again = record.again or again
  record.adopted = record.adopted or not same
  write_record(record)
  if same then
    return format('held %d', record.at) .. record.seen
  end
  return format('adopted %s %d', record.id, record.at) .. record.seen .. '\n' .. record.body
end

-- Whether the reservation was over before this message came. Under its own name there is a grave then, or what another
-- has reserved by that name since.
local function is_over(record)
  if named then
    record = load_record(next_key())
  end
  return record and record.id ~= id
end

-- Compute what is to be written of one scope.
local function prepare(scope, lease, now)
  local last = 0
  if scope.slots then
    scope.others = last_of_others(scope.slots, id)
    last = max(scope.others, now + lease)
  end
  if scope.changed then
    render(scope, last, now)
  end
end

local function answer_message()
  local body, key = cjson.decode(text), next_key()
  local record = load_record(key)
  if is_over(record) then
    return 'gone'
  end
  if record and not record.buried then
    return answer_again(record, body)
  end
  local scopes, now = load_scopes(body)
  local seen, refused, generations = judge(scopes, body[2], now)
  if refused then
    return format('refused %d', now) .. seen
  end
  for _, scope in ipairs(scopes) do
    prepare(scope, body[1], now)
  end
  -- All is read and computed. Slots come first, since they end by themselves.
  for _, scope in ipairs(scopes) do
    if scope.slots then
      take_slot(scope.slots, id, body[1], scope.others, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      write_scope(scope)
    end
  end
  write_record({
    key = key, id = id, own = not named, at = now, renewed = 0, adopted = false, again = again, seen = seen,
    generations = generations, body = text,
  })
  return format('held %d', now) .. seen
end
