-- Messages that come twice, and reservations that are asked for twice (R9).

-- Whether all that one asks beyond what is asked unasked is asked by the other as well.
local function covers(asks, others)
  for metric, ask in pairs(asks) do
    if ask ~= UNASKED[metric] and others[metric] ~= ask then
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

-- What remembers for a while that an id is over: a late copy of its reserve finds that, and a late copy of the message
-- that resolved it that it was this one.
local function grave_of(winner, now)
  return format('%d %s', now + HORIZON, winner)
end

local function bury(key, grave, now)
  call('SET', key, grave, 'PX', ttl(now + HORIZON))
end
