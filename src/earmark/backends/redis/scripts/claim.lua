-- Have a reservation whose parts stand on several slots of a cluster answer to the name that its caller chose.
-- Keys: the record of the name, and that of the id. The body is 'instant what-was-seen', a newline, and the body of a
-- reserve with every scope, for whoever asks by the same name; without the first line it is a look whether the name is
-- free, before anything is taken. The parts are what is given back: here is nothing but who was first.

local records = use('records')

return function(message)
  local newline = string.find(message.body, '\n', 1, true)
  local text = string.sub(message.body, newline + 1)
  local key = message.next_key()
  local record, identity = records.load(key, message.now), use('identity')
  if identity.is_over(message, record) then
    return 'gone'
  end
  if record and not record.buried then
    return identity.answer_again(message, record, cjson.decode(text), record.seen)
  end
  local at, seen = string.match(string.sub(message.body, 1, newline - 1), '^(%d+) ?(.*)$')
  if not at then
    return 'free'
  end
  records.write(key, message.id, tonumber(at), 0, false, message.again, seen, {}, text)
  return format('held %s %s', at, seen)
end
