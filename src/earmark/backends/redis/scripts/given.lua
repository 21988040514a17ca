-- To whom an open reservation was given by its name, and what becomes of it where they withdraw before they have heard of it.
-- Twin: earmark.backends.book.

-- So many messages by which a reservation was adopted are told apart.
local MOST = 32

-- Note who is given what is open. One that was sent before stays, since it may be withdrawn for its late copy alone.
local function give(record)
  local given, count = record.given or {}, 0
  for _ in pairs(given) do
    count = count + 1
  end
  given[(again or count >= MOST) and '*' or id] = true
  record.given = given
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
  write_record(record.key, use('notes').with_notes(record), max(record.at, record.renewed))
  if own ~= record.key then
    local identity = use('identity')
    identity.bury(own, identity.grave_of(verdict[4], over), over)
  end
  return record.id == id and 'gone' or 'buried'
end

return {give = give, answer_withdrawn = answer_withdrawn, align = align}
