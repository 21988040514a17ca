-- Messages that come twice, and reservations that are asked for twice (R9).

local unasked = use('metrics').unasked

-- Whether all that one asks beyond what is asked unasked is asked by the other as well.
local function covers(asks, others)
  for metric, ask in pairs(asks) do
    if ask ~= unasked[metric] and others[metric] ~= ask then
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

return {
  -- The answer to what is open already: to the same message once more, or to another caller of the same name.
  answer_again = function(message, record, body, seen)
    local same = record.id == message.id
    if not same and not repeats(body, cjson.decode(record.body)) then
      return 'conflict'
    end
    record.again = record.again or message.again
    record.adopted = record.adopted or not same
    use('records').save(record)
    if same then
      return format('held %d %s', record.at, seen)
    end
    return format('adopted %s %d %s\n%s', record.id, record.at, seen, record.body)
  end,

  -- Whether the reservation was over before this message came. Under its own name there is a grave then, or what another
  -- has reserved by that name since.
  is_over = function(message, record)
    if message.named then
      record = use('records').load(message.next_key(), message.now)
    end
    return record and record.id ~= message.id
  end,

  -- What remembers for a while that an id is over: a late copy of its reserve finds that, and a late copy of the message
  -- that resolved it that it was this one.
  grave = function(winner, now)
    return format('[%d,"%s"]', now + HORIZON, winner)
  end,

  bury = function(key, grave, now)
    call('SET', key, grave, 'PX', ttl(now + HORIZON))
  end,
}
