-- Have a reservation whose parts stand on several slots of a cluster answer to the name that its caller chose.
-- Keys: the record of the name, and that of the id. The body is 'instant what-was-seen', a newline, and the body of a
-- reserve with every scope, for whoever asks by the same name; without the first line it is a look whether the name is
-- free, before anything is taken. The parts are what is given back: here is nothing but who was first.

local function answer_message()
  local key = next_key()
  local record, former = load_record(key), load_record(next_key(), id)
  if former and former.id ~= id then
    return 'gone'
  end
  local newline = string.find(text, '\n', 1, true)
  local seen, asked = string.sub(text, 1, newline - 1), string.sub(text, newline + 1)
  if record and not record.buried then
    return use('identity').answer_again(record, cjson.decode(asked), record.seen)
  end
  if seen == '' then
    return 'free'
  end
  local kept = use('notes').with_notes({id = id, named = true, again = again, renewed = 0, seen = seen, body = asked})
  write_record(key, kept, match(seen, '^%d+') + 0)
  return 'held ' .. seen
end
