-- True up the holds of one reservation and free its slots; the first one wins.
-- Keys: as for its reserve. The body is [verb, what was used, what was used at least, name of the call, 1 where other
-- processes may know of the reservation].
-- Twin: MemoryStore.resolve, and earmark.core.settlement.used for what was used.

local UNSENT = {cancel = true, withdraw = true}

-- What was used of a metric; nil: what was held.
local function used_of(metric, verdict, asks)
  if UNSENT[verdict[1]] then
    return 0
  end
  local at_least = verdict[3][metric]
  return verdict[2][metric] or at_least and max(asks[metric] or 0, at_least)
end

-- Compute what becomes of one limit; returns whether anything has changed.
local function true_up(scope, name, amount, over, record, position, now)
  local kind, state = kind_of(name), scope.states[name]
  if over > 0 then
    scope.states[name] = kind.rules.debit(kind, amount, state, over, now)
    return true
  end
  if forgiven(scope, name, record.generations[position] or 0, now) or not live(scope, name, now) then
    return false
  end
  scope.states[name] = kind.rules.give_back(kind, amount, state, -over, record.at, now)
  return true
end

-- Read what is left to read, and compute all that is to be written.
local function true_up_all(scopes, record, asks, verdict, now)
  local position = 0
  for _, scope in ipairs(scopes) do
    local parts, last = scope.parts, 0
    for part = 3, #parts, 2 do
      local name, amount = parts[part], parts[part + 1]
      position = position + 1
      if name == 'c' then
        last = last_of_others(scope.slots, record.id)
        scope.others, scope.changed = last, true
      else
        local metric = kind_of(name).metric
        local held = asks[metric] or UNASKED[metric] or 0
        local over = (used_of(metric, verdict, asks) or held) - held
        if over ~= 0 then
          amount = type(amount) == 'table' and amount[1] or amount
          scope.changed = true_up(scope, name, amount, over, record, position, now) or scope.changed
        end
      end
    end
    if scope.changed then
      render(scope, last, now)
    end
  end
end

local function write_all(scopes, record, now)
  for _, scope in ipairs(scopes) do
    if scope.slots then
      free_slot(scope.slots, record.id, scope.others, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      write_scope(scope)
    end
  end
end

-- What is to be answered where nothing is open: an id that was buried says by whom it was resolved.
local function answer_closed(verdict, own, grave)
  local winner = grave and grave.buried
  if verdict[1] == 'withdraw' and not winner then
    bury(own, grave_of(verdict[4], clock), clock)
  end
  return winner == verdict[4] and 'done' or 'gone'
end

local function answer_message()
  local verdict, key = cjson.decode(text), next_key()
  local own = named and next_key() or key
  local record = load_record(key)
  if not record or record.id ~= id then
    return answer_closed(verdict, own, named and load_record(own) or record)
  end
  if verdict[1] == 'withdraw' and record.adopted then
    return 'gone'
  end
  local body = cjson.decode(record.body)
  local scopes, now = load_scopes(body)
  true_up_all(scopes, record, body[2], verdict, now)
  local late = verdict[5] == 1 or record.again or verdict[1] == 'withdraw'
  local grave = late and grave_of(verdict[4], now)
  -- The record goes first: should anything fail after all, nothing is given back twice.
  call('DEL', key)
  if grave then
    bury(own, grave, now)
  end
  write_all(scopes, record, now)
  return 'done'
end
