-- Messages that come twice, and reservations that are asked for twice (R9).

-- The id of the reservation whose record has a key.
local function id_of(key)
  return match(key, '^[^:]*:r%d*:(.*)$')
end

-- Whether all that one asks beyond what is asked unasked is asked by the other as well: a request, and no tokens.
local function covers(asks, others)
  for metric, ask in pairs(asks) do
    local unasked = metric == 'r' and 1 or #metric == 1 and 0
    if ask ~= unasked and others[metric] ~= ask then
      return false
    end
  end
  return true
end

-- Whether two messages ask the same of the same keys, in whatever order. Twin: Hold.repeats.
local function repeats(body, other)
  local keys = {}
  for position = 3, #other do
    keys[other[position][1]] = true
  end
  for position = 3, #body do
    if not keys[body[position][1]] then
      return false
    end
  end
  return #body == #other and covers(body[2], other[2]) and covers(other[2], body[2])
end

-- So many messages by which a reservation was adopted are told apart.
local MOST = 32

local function update(record)
  write_record(record.key, use('notes').with_notes(record), max(record.at, record.renewed))
end

-- Note who is given what is open. One that was sent before stays, since it may be withdrawn for its late copy alone.
local function give(record)
  local given, count = record.given or {}, 0
  for _ in pairs(given) do
    count = count + 1
  end
  given[(again or count >= MOST) and '*' or id] = true
  record.given = given
end

-- The answer to what is open already: to the same message once more, or to another caller of the same name.
local function answer_again(record, body, seen)
  local same = record.id == id
  if not same and not repeats(body, cjson.decode(record.body)) then
    return 'conflict'
  end
  record.again = record.again or again
  if not same then
    give(record)
  end
  update(record)
  if same then
    return 'held ' .. seen
  end
  return (record.named and 'adopted ' or 'met ') .. record.id .. ' ' .. seen .. '\n' .. record.body
end

-- What remembers for a while that an id is over: a late copy of its reserve finds that, and a late copy of the message
-- that resolved it that it was this one.
local function grave_of(winner, over)
  return format('%d %s', over, winner)
end

local function bury(key, grave, over)
  call('SET', key, grave, 'PX', ttl(over))
end

-- The answer to a resolve where nothing is open: an id that was buried says by whom it was resolved. What is withdrawn
-- before it came is buried: its parts on other nodes are nobody else's.
local function answer_closed(verdict, own, grave)
  local winner = grave and grave.buried
  if verdict[1] == 'withdraw' and not winner then
    local over = clock + HORIZON
    bury(own, grave_of(verdict[4], over), over)
    return 'buried'
  end
  return winner == verdict[4] and 'done' or 'gone'
end

-- Have the keys of scopes stand as another message about them has them, which may have them in another order; false where
-- it has one that this has not.
local function align(body)
  local named_by, order, wanted = {}, {}, 0
  for position = used_keys + 1, last_key do
    local kind, name = match(KEYS[position], '^[^:]*:(%l)%d*:(.*)$')
    named_by[kind .. name] = KEYS[position]
  end
  for number = 3, used_keys < last_key and #body or 2 do
    local parts = body[number]
    local kinds = 'c'
    for part = 2, #parts - 1, 2 do
      kinds = parts[part] == 'c' and 'cs' or kinds
    end
    for kind in string.gmatch(kinds, '.') do
      order[#order + 1] = named_by[kind .. parts[1]]
    end
    wanted = wanted + #kinds
  end
  if #order < wanted then
    return false
  end
  for position = 1, #order do
    KEYS[used_keys + position] = order[position]
  end
  return true
end

-- The answer to a withdrawal of what was adopted; nil, where that is nobody's any more, and can be undone by this message.
-- Whoever made it leaves it to the others, and a late copy of its reserve finds that it has.
local function answer_withdrawn(record, own, verdict)
  local given, over = record.given, clock + HORIZON
  given[id] = nil
  if record.id == id then
    given['!'] = true
  end
  local left = 0
  for _ in pairs(given) do
    left = left + 1
  end
  if left == 1 and given['!'] and align(cjson.decode(record.body)) then
    return nil
  end
  record.given = left > 0 and given
  update(record)
  if own ~= record.key then
    bury(own, grave_of(verdict[4], over), over)
  end
  return record.id == id and 'gone' or 'buried'
end

return {
  id_of = id_of, answer_again = answer_again, answer_closed = answer_closed, answer_withdrawn = answer_withdrawn,
  align = align, grave_of = grave_of, bury = bury,
}
