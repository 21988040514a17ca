-- True up the holds of one reservation and free its slots; the first one wins.
-- Keys: as for its reserve. The body is [verb, what was used, what was used at least, name of the call, 1 where other
-- processes may know of the reservation, or 2 where moreover messages to other slots of a cluster wait for the answer].
-- Twin: MemoryStore.resolve, and earmark.core.settlement.used for what was used.

-- How much more was used of what is limited than was held.
local function over_of(kind, verdict, asks)
  local metric = kind.metric
  local held = asks[metric] or kind.unasked or 0
  if verdict[1] == 'cancel' or verdict[1] == 'withdraw' then
    return -held
  end
  local exact, at_least = verdict[2][metric], verdict[3][metric]
  return (exact or at_least and max(asks[metric] or 0, at_least) or held) - held
end

-- Compute what becomes of one limit.
local function true_up(scope, kind, name, amount, over, record, position, now)
  local rules, at, counts = kind.rules, place_of(scope, name), scope.counts
  if rules.bursts then
    amount = amounts_of(amount)
  end
  if over > 0 then
    debit(scope, kind, name, amount, at, over, now)
    return
  end
  local noted = record.generations and record.generations[position] or 0
  if (scope.resets or noted < 0) and use('resets').forgiven(scope, name, noted, now) then
    return
  end
  if at and rules.ends(kind, counts, at) > now then
    rules.give_back(kind, amount, counts, at, -over, record.at, now)
    scope.changed = true
  end
end

-- Read what is left to read, and compute all that is to be written.
local function true_up_all(scopes, record, asks, verdict, now)
  local position = 0
  for number = 1, #scopes do
    local scope = scopes[number]
    local parts, last = scope.parts, 0
    for part = 2, #parts - 1, 2 do
      local name = parts[part]
      position = position + 1
      if name == 'c' then
        last = use('slots').last_of_others(scope.slots, record.id)
        scope.others, scope.changed = last, true
      else
        local kind = kinds[name] or kind_of(name)
        local over = over_of(kind, verdict, asks)
        if over ~= 0 then
          true_up(scope, kind, name, parts[part + 1], over, record, position, now)
        end
      end
    end
    if scope.changed then
      render(scope, last, now)
    end
  end
end

local function answer_message()
  local verdict, key = cjson.decode(text), next_key()
  local own = named and next_key() or key
  local record, withdrawn = load_record(key, id), verdict[1] == 'withdraw'
  local given = withdrawn and record and record.given
  local adopted = given and given[id]
  if not record or record.id ~= id and not adopted then
    return use('identity').answer_closed(verdict, own, named and load_record(own) or record)
  end
  local answer = given and use('given').answer_withdrawn(record, own, verdict)
  if answer then
    return answer
  end
  local body = cjson.decode(record.body)
  if withdrawn and not given and not use('given').align(body) then
    return 'gone'
  end
  local scopes, now = load_scopes(body)
  true_up_all(scopes, record, body[2], verdict, now)
  -- What waits for the answer is lost with it: it can be had for as long as somebody may be owed it.
  local over = now + (verdict[5] == 2 and KEEP or HORIZON)
  local late = verdict[5] > 0 or record.again or withdrawn
  local grave = late and use('identity').grave_of(verdict[4], over)
  -- The record goes first: should anything fail after all, nothing is given back twice. A grave in its place takes that
  -- without deleting: while a slot is moved to another node, a key that is gone is not this node's any more.
  if not grave or own ~= key then
    call('DEL', key)
  else
    call('PEXPIRE', key, ttl(over))  -- a full server lets through what comes after a write
  end
  if grave then
    use('identity').bury(own, grave, over)
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    if scope.slots then
      use('slots').free_slot(scope.slots, record.id, scope.others, now)
    end
  end
  for number = 1, #scopes do
    local scope = scopes[number]
    if scope.changed then
      write_scope(scope)
    end
  end
  return adopted and verdict[5] == 2 and 'freed ' .. record.id or 'done'
end
