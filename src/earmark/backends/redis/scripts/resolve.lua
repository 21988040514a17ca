-- True up the holds of one reservation and free its slots; the first one wins.
-- Keys: as for its reserve. The body is [verb, what was used, what was used at least, name of the call, 1 where other
-- processes may know of the reservation].
-- Twin: MemoryStore.resolve, and earmark.core.settlement.used for what was used.

local records, unasked = use('records'), use('metrics').unasked

local UNSENT = {cancel = true, withdraw = true}

-- What was used of a metric; nil: what was held.
local function used_of(metric, verdict, asks)
  local exact, at_least = verdict[2][metric], verdict[3][metric]
  if UNSENT[verdict[1]] then
    return 0
  end
  return exact or at_least and max(asks[metric] or 0, at_least)
end

-- Compute what becomes of one limit; returns whether anything has changed.
local function true_up(scope, name, amount, over, record, position, now)
  local scopes = use('scopes')
  local kind, state = scopes.kind_of(name), scope.states[name]
  if over > 0 then
    scope.states[name] = kind.rules.debit(kind, amount, state, over, now)
    return true
  end
  if scopes.forgiven(scope, name, record.generations[position] or 0, now) or not scopes.live(scope, name, now) then
    return false
  end
  scope.states[name] = kind.rules.give_back(kind, amount, state, -over, record.at, now)
  return true
end

-- Read what is left to read, and compute all that is to be written.
local function true_up_all(scopes, record, asks, verdict, now)
  local position = 0
  for _, scope in ipairs(scopes) do
    local parts, changed = scope.parts, false
    for part = 3, #parts, 2 do
      local name, amount = parts[part], parts[part + 1]
      position = position + 1
      if name == 'c' then
        scope.lasts = use('slots').last(scope.slots, record.id)
        changed = true
      else
        local metric = use('scopes').kind_of(name).metric
        local held = asks[metric] or unasked[metric] or 0
        local over = (used_of(metric, verdict, asks) or held) - held
        if over ~= 0 then
          amount = type(amount) == 'table' and amount[1] or amount
          changed = true_up(scope, name, amount, over, record, position, now) or changed
        end
      end
    end
    if changed then
      use('scopes').render(scope, now)
    end
    scope.changed = changed
  end
end

local function write_all(scopes, record, now)
  for _, scope in ipairs(scopes) do
    if scope.slots then
      use('slots').free(scope.slots, record.id, scope.lasts, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      use('scopes').write(scope)
    end
  end
end

-- What is to be answered where nothing is open: an id that was buried says by whom it was resolved. What is withdrawn
-- before it came is buried: its parts on other nodes are nobody else's.
local function answer_closed(message, verdict, own, grave)
  local winner = grave and grave.buried
  if verdict[1] == 'withdraw' and not winner then
    use('identity').bury(own, use('identity').grave(verdict[4], message.now), message.now)
    return 'buried'
  end
  return winner == verdict[4] and 'done' or 'gone'
end

-- The record goes first: should anything fail after all, nothing is given back twice. A grave in its place takes that
-- without deleting: while a slot is moved to another node, a key that is gone is not this node's any more.
local function close(key, own, grave, now)
  if not grave or own ~= key then
    call('DEL', key)
  else
    call('PEXPIRE', key, ttl(now + HORIZON))  -- a full server lets through what comes after a write
  end
  if grave then
    use('identity').bury(own, grave, now)
  end
end

return function(message)
  local verdict, now = cjson.decode(message.body), message.now
  local key = message.next_key()
  local own = message.named and message.next_key() or key
  local record = records.load(key, now)
  if not record or record.id ~= message.id then
    local grave = message.named and records.load(own, now) or record
    return answer_closed(message, verdict, own, grave)
  end
  if verdict[1] == 'withdraw' and record.adopted then
    return 'gone'
  end
  local body = cjson.decode(record.body)
  local scopes
  scopes, now = use('admission').load_scopes(message, body, now)
  true_up_all(scopes, record, body[2], verdict, now)
  local late = verdict[5] == 1 or record.again or verdict[1] == 'withdraw'
  local grave = late and use('identity').grave(verdict[4], now)
  close(key, own, grave, now)
  write_all(scopes, record, now)
  return 'done'
end
