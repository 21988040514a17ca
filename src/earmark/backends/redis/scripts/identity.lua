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

-- The answer to what is open already: to the same message once more, or to another caller of the same name.
local function answer_again(record, body, seen)
  local same = record.id == id
  if not same and not repeats(body, cjson.decode(record.body)) then
    return 'conflict'
  end
  record.again = record.again or again
  if not same then
    use('given').give(record)
  end
  write_record(record.key, use('notes').with_notes(record), max(record.at, record.renewed))
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

return {id_of = id_of, answer_again = answer_again, answer_closed = answer_closed, grave_of = grave_of, bury = bury}
