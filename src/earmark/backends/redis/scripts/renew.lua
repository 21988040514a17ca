-- Keep a reservation, and extend the leases of its slots where they have not lapsed.
-- Keys: the record, [that of the id], and of each scope the counts, where it has a bucket, and the slots, where it
-- limits concurrency. A bucket's reset is noted, since its mark may end before the reservation does.
-- Twin: Book.renew.

local records, scopes = use('records'), use('scopes')

local function has_bucket(parts)
  for part = 3, #parts, 2 do
    if string.byte(parts[part]) == 98 then
      return true
    end
  end
end

-- Note which limits of a scope were reset since; returns whether a slot has lapsed, and the number of the last limit.
local function look(message, parts, record, number, kept)
  local scope, lapsed = has_bucket(parts) and scopes.load(message.next_key()), false
  for part = 3, #parts, 2 do
    local name = parts[part]
    number = number + 1
    if name == 'c' then
      local slots = message.next_key()
      if use('slots').holds(slots, record.id, message.now) then
        kept[#kept + 1] = {slots = slots, others = use('slots').last(slots, record.id)}
      else
        lapsed = true
      end
    elseif scope and scopes.forgiven(scope, name, record.generations[number] or 0, message.now) then
      record.generations[number] = -1
    end
  end
  return lapsed, number
end

return function(message)
  local now, key = message.now, message.next_key()
  if message.named then
    message.next_key()
  end
  local record = records.load(key, now)
  if not record or record.id ~= message.id then
    return 'gone'
  end
  local body, held, number, kept = cjson.decode(record.body), true, 0, {}
  for position = 3, message.has_more_keys() and #body or 2 do  -- else nothing is here that a renewal reads
    local lapsed
    lapsed, number = look(message, body[position], record, number, kept)
    held = held and not lapsed
  end
  record.renewed = now
  for _, one in ipairs(kept) do
    use('slots').take(one.slots, record.id, body[1], one.others, now)
  end
  records.save(record)
  return held and 'held' or 'lapsed'
end
