-- A joint message: two reservations that are taken at one instant, both or neither, and stand each by itself from then on.
-- Its text is the message of the first and, a line below, that of the second, and both records are in front of the other
-- keys. Twin: earmark.core.joint.

-- The message of the first, and the second.
local function take_apart()
  local newline, key = string.find(text, '\n', 1, true), next_key()
  return string.sub(text, 1, newline - 1), {key = key, id = use('identity').id_of(key), text = string.sub(text, newline + 1)}
end

-- Have the first's body ask of the scopes of both; returns the number of its own last scope.
local function ask_of_both(body, second)
  local last, more = #body - 2, cjson.decode(second.text)
  body[1] = max(body[1], more[1])  -- the lease; 0 where a part has no slots
  for position = 3, #more do
    body[#body + 1] = more[position]
  end
  return last
end

-- What was seen of limits, without the instant at which it was.
local function without_instant(seen)
  return match(seen, '^%d+(.*)$')
end

-- What was seen of both, to a message that comes again; nil: the second is over.
local function seen_again(record, second)
  local other = load_record(second.key, second.id)
  if not other or other.buried then
    return nil
  end
  other.again = other.again or again
  write_record(other.key, use('notes').with_notes(other), max(other.at, other.renewed))
  return record.seen .. without_instant(other.seen)
end

-- Take what is the second's out of what was seen of both, and of the generations; returns what is the first's.
local function divide(second, seen, generations, seen_before, limits_before)
  local left
  for position, generation in pairs(generations or {}) do
    if position > limits_before then
      second.generations = second.generations or {}
      second.generations[position - limits_before] = generation
    else
      left = left or {}
      left[position] = generation
    end
  end
  second.seen = match(seen, '^%d+') .. string.sub(seen, seen_before + 1)
  return string.sub(seen, 1, seen_before), left
end

return {take_apart = take_apart, ask_of_both = ask_of_both, seen_again = seen_again, divide = divide}
