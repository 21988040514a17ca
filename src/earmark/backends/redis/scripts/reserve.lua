-- Decide over every limit of every scope at one instant, and debit all of them or none.
-- Keys: the record, [the record of the id, where the caller chose a name], then the counts of each scope and, where
-- it limits concurrency, its slots. Twin: MemoryStore.reserve.
-- A joint message is two in one, a line each, with both records in front of the other keys. Twin: earmark.core.joint.

local admission, records = use('admission'), use('records')
local scopes_file = use('scopes')
local kind_of = scopes_file.kind_of

-- The text of a message, and the second part of a joint one.
local function split(message)
  local newline = string.find(message.body, '\n', 1, true)
  if not newline then
    return message.body
  end
  local key = message.next_key()
  local text = string.sub(message.body, newline + 1)
  return string.sub(message.body, 1, newline - 1), {key = key, id = records.id_of(key), text = text}
end

-- What is asked: of a joint message, of the scopes of both parts. Returns the number of the first part's last scope as well.
local function asked_of(text, second)
  local body = cjson.decode(text)
  local last = #body - 2
  if second then
    local more = cjson.decode(second.text)
    body[1] = max(body[1], more[1])  -- the lease; 0 where a part has no slots
    for position = 3, #more do
      body[#body + 1] = more[position]
    end
  end
  return body, last
end

-- What was seen of a joint message by now, both parts of which are open.
local function seen_again(record, second, message)
  local other = records.load(second.key, message.now)
  if not other or other.buried then
    return nil
  end
  other.again = other.again or message.again
  records.save(other)
  return record.seen .. ' ' .. other.seen
end

-- The answer to what is open already: to the same message once more, or to another caller of the same name.
local function answer_again(message, record)
  local text, second = split(message)
  local same = record.id == message.id
  if not same and not use('identity').repeats(cjson.decode(text), cjson.decode(record.body)) then
    return 'conflict'
  end
  local seen = record.seen
  if second then
    seen = seen_again(record, second, message)
    if not seen then
      return 'gone'
    end
  end
  record.again = record.again or message.again
  record.adopted = record.adopted or not same
  records.save(record)
  if same then
    return format('held %d %s', record.at, seen)
  end
  return format('adopted %s %d %s\n%s', record.id, record.at, seen, record.body)
end

-- Whether the reservation was over before this message came. Under its own name there is a grave then, or what another
-- has reserved by that name since.
local function is_over(message, record)
  if message.named then
    record = records.load(message.next_key(), message.now)
  end
  return record and record.id ~= message.id
end

-- Compute the debits of one scope, of whose limits the first has this number; returns the last number.
local function debit(scope, asked, number, lease, now)
  local parts, states = scope.parts, scope.states
  for part = 3, #parts, 2 do
    number = number + 1
    local name, amount, ask = parts[part], parts[part + 1], asked[number]
    if name == 'c' then
      scope.others = use('slots').last(scope.slots, scope.holder)
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

-- Compute all debits; `split_at` is the number of the first part's last limit.
local function debit_all(message, scopes, asked, lease, last, second, now)
  local number, split_at = 0, 0
  for position, scope in ipairs(scopes) do
    local first = position <= last
    scope.holder = first and message.id or second.id
    number = debit(scope, asked, number, lease, now)
    split_at = first and number or split_at
  end
  return split_at
end

-- The generations of the limits after one, by their numbers after it; those up to it are taken out.
local function cut(generations, split_at)
  local rest = {}
  for number, generation in pairs(generations) do
    if number > split_at then
      rest[number - split_at] = generation
    end
  end
  for number in pairs(rest) do
    generations[number + split_at] = nil
  end
  return rest
end

return function(message)
  local now = message.now
  local key = message.next_key()
  local record = records.load(key, now)
  if is_over(message, record) then
    return 'gone'
  end
  if record and not record.buried then
    return answer_again(message, record)
  end
  local text, second = split(message)
  local body, last = asked_of(text, second)
  local scopes
  scopes, now = admission.load_scopes(message, body, now)
  local seen, asked, generations, refused = admission.judge(scopes, body[2], now)
  local all_seen = table.concat(seen, ' ')
  if refused then
    return format('refused %d %s', now, all_seen)
  end
  local lease = body[1]
  local split_at = debit_all(message, scopes, asked, lease, last, second, now)
  -- All is read and computed. Slots come first, since they end by themselves.
  for _, scope in ipairs(scopes) do
    if scope.slots then
      use('slots').take(scope.slots, scope.holder, lease, scope.others, now)
    end
  end
  for _, scope in ipairs(scopes) do
    if scope.changed then
      scopes_file.write(scope)
    end
  end
  local own_seen = all_seen
  if second then
    local rest = cut(generations, split_at)
    local its_seen = table.concat(seen, ' ', split_at + 1)
    own_seen = table.concat(seen, ' ', 1, split_at)
    records.write(second.key, false, now, 0, false, message.again, its_seen, rest, second.text)
  end
  records.write(key, message.named and message.id, now, 0, false, message.again, own_seen, generations, text)
  return format('held %d %s', now, all_seen)
end
