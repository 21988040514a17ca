-- Keep a reservation, and extend the leases of its slots where they have not lapsed.
-- Keys: the record, [that of the id], and of each scope the counts, where it has a bucket, and the slots, where it
-- limits concurrency. A bucket's reset is noted, since it may be forgotten before the reservation is.
-- Twin: Book.renew.

local function has_bucket(parts)
  for part = 2, #parts - 1, 2 do
    if string.byte(parts[part]) == 98 then
      return true
    end
  end
end

-- Note which limits of a scope were reset since; returns whether a slot has lapsed, and the position of the last limit.
local function look(parts, record, position, kept)
  local scope, lapsed = has_bucket(parts) and load_scope(next_key(), parts), false
  local generations = record.generations
  for part = 2, #parts - 1, 2 do
    local name = parts[part]
    position = position + 1
    if name == 'c' then
      local key = next_key()
      local held = use('slots').lease_end(key, record.id, clock)
      if held then
        kept[#kept + 1] = {key = key, held = held, others = use('slots').last_of_others(key, record.id)}
      else
        lapsed = true
      end
    elseif scope and use('resets').forgiven(scope, name, generations[position] or 0, clock) then
      generations[position] = -1
    end
  end
  return lapsed, position
end

local function answer_message()
  local key = next_key()
  if named then
    next_key()
  end
  local record = load_record(key, id)
  if not record or record.id ~= id then
    return 'gone'
  end
  record.generations = record.generations or {}
  local body, held, position, kept = cjson.decode(record.body), true, 0, {}
  for number = 3, used_keys < last_key and #body or 2 do  -- else nothing is here that a renewal reads
    local lapsed
    lapsed, position = look(body[number], record, position, kept)
    held = held and not lapsed
  end
  record.renewed = max(record.renewed, clock)
  for number = 1, #kept do
    local one = kept[number]
    use('slots').take_slot(one.key, record.id, use('slots').lease_of(body), one.others, clock, one.held)
  end
  write_record(record.key, use('notes').with_notes(record), max(record.at, record.renewed))
  return held and 'held' or 'lapsed'
end
