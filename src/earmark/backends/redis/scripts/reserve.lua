-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [the record of the id, where the caller chose a name], then the counts of each scope and, where
-- it limits concurrency, its slots. Twin: MemoryStore.reserve.

-- Compute what is to be written of the scopes.
local function prepare(scopes, lease, now)
  for _, scope in ipairs(scopes) do
    local last = 0
    if scope.slots then
      scope.others = use(slots).last_of_others(scope.slots, id)
      last = max(scope.others, now + lease)
    end
    if scope.changed then
      render(scope, last, now)
    end
  end
end

local function answer_message()
  local body, key = cjson.decode(text), next_key()
  local record = load_record(key)
  -- Whether the reservation was over before this message came: under its own name there is a grave then, or what another
  -- has reserved by that name since.
  local former = record
  if named then
    former = load_record(next_key())
  end
  if former and former.id ~= id then
    return 'gone'
  end
  if record and not record.buried then
    return use(identity).answer_again(record, body)
  end
  local scopes, now = load_scopes(body)
  local seen, refused, generations = judge(scopes, body[2], now)
  if refused then
    return 'refused ' .. seen
  end
  prepare(scopes, body[1], now)
  -- All is read and computed. Slots come first, since they end by themselves.
  for _, scope in ipairs(scopes) do
    if scope.slots then
      use(slots).take_slot(scope.slots, id, body[1], scope.others, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      write_scope(scope)
    end
  end
  local kept = seen .. '\n' .. text
  if named or again or generations then
    kept = use(notes).with_notes({
      id = id, named = named, again = again, renewed = 0, generations = generations, seen = seen, body = text,
    })
  end
  write_record(key, kept, now)
  return 'held ' .. seen
end
