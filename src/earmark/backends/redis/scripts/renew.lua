-- Keep a reservation, and extend the leases of its slots where they have not lapsed.
-- Keys: the record, [that of the id], and the slots of each scope that limits concurrency. Twin: Book.renew.

local records = use('records')

return function(message)
  local now, key = message.now, message.next_key()
  if message.named then
    message.next_key()
  end
  local record = records.load(key, now)
  if not record or record.id ~= message.id then
    return 'gone'
  end
  record.renewed = now
  records.save(record, now)
  local lease, held = cjson.decode(record.body)[1], true
  for slots in message.next_key do
    held = use('slots').renew(slots, record.id, lease, now) and held
  end
  return held and 'held' or 'lapsed'
end
