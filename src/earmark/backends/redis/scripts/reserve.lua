-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [that of the id, where the caller chose a name, and where that reads like an id of the library's the
-- record of that], then the counts of each scope and, where it limits concurrency, its slots. Twin: MemoryStore.reserve.

-- Compute what is to be written of the scopes; those after the number `last` are of the second of two.
local function prepare(scopes, body, last, second, now)
  for number = 1, #scopes do
    local scope = scopes[number]
    local ends = 0
    if scope.slots then
      scope.holder = second and number > last and second.id or id
      scope.others = use('slots').last_of_others(scope.slots, scope.holder)
      scope.lease = use('slots').lease_of(body)
      ends = max(scope.others, now + scope.lease)
    end
    if scope.changed then
      render(scope, ends, now)
    end
  end
end

-- `option` is NX where there may be one, which stays; false, if it has.
local function write_new(key, id, seen, asked, generations, now, option)
  local kept = seen .. '\n' .. asked
  if named or again or generations then
    kept = use('notes').with_notes({
      id = id, named = named, again = again, renewed = 0, generations = generations, seen = seen, body = asked,
    })
  end
  return write_record(key, kept, now, option)
end

-- The answer to what is open already.
local function answer_open(record, asked, second)
  local seen = record.seen
  if second then
    seen = use('joint').seen_again(record, second)
  end
  return seen and use('identity').answer_again(record, cjson.decode(asked), seen) or 'gone'
end

local function answer_message()
  local key = next_key()
  -- A message that is sent for the first time, under no name, finds nothing, unless its copy was faster or was withdrawn: that
  -- is seen as the record is written.
  local first = not (named or again)
  local record = not first and load_record(key, id) or nil
  -- Whether the reservation was over before this message came: under its own name there is a grave then, or what another
  -- has reserved by that name since.
  local former = record
  if named then
    former = load_record(next_key(), id)
  end
  local other
  if meant then
    local own = next_key()
    other = load_record(own, use('identity').id_of(own))
  end
  if former and former.id ~= id then
    return 'gone'
  end
  if other and not other.buried then
    record = other
  end
  local asked, last, second = text
  if string.find(text, '\n', 1, true) then
    asked, second = use('joint').take_apart()
  end
  if record and not record.buried then
    return answer_open(record, asked, second)
  end
  local body = cjson.decode(asked)
  if second then
    last = use('joint').ask_of_both(body, second)
  end
  local scopes, now = load_scopes(body)
  local seen, refused, generations, seen_before, limits_before = judge(scopes, body[2], now, last)
  if refused then
    return 'refused ', seen
  end
  prepare(scopes, body, last, second, now)
  -- All is read and computed.
  local seen_of_all = seen
  if second then
    seen, generations = use('joint').divide(second, seen, generations, seen_before, limits_before)
  end
  if first and not write_new(key, id, seen, asked, generations, now, 'NX') then
    record = load_record(key, id)
    if record then
      return record.buried and 'gone' or answer_open(record, asked, second)
    end
    first = false  -- it is over, and still there
  end
  if not first then
    write_new(key, id, seen, asked, generations, now)
  end
  if second then
    write_new(second.key, second.id, second.seen, second.text, second.generations, now)
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    if scope.slots then
      use('slots').take_slot(scope.slots, scope.holder, scope.lease, scope.others, now)
    end
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    if scope.changed then
      write_scope(scope)
    end
  end
  return 'held ', seen_of_all
end
