-- Who answers to a name: the same message once more, another caller of the same name, or nobody any more. Twin: Book.

local records = use('records')

-- The answer to what is open already.
local function answer_again(message, record, body)
  local same = record.id == message.id
  if not same and not use('identity').repeats(body, cjson.decode(record.body)) then
    return 'conflict'
  end
  record.again = record.again or message.again
  record.adopted = record.adopted or not same
  records.save(record)
  if same then
    return format('held %d %s', record.at, record.seen)
  end
  return format('adopted %s %d %s\n%s', record.id, record.at, record.seen, record.body)
end

-- Whether the reservation was over before this message came. Under its own name there is a grave then, or what another
-- has reserved by that name since.
local function is_over(message, record)
  if message.named then
    record = records.load(message.next_key(), message.now)
  end
  return record and record.id ~= message.id
end

return {
  -- What is to be answered at once; nil where the name is free.
  answer = function(message, record, body)
    if is_over(message, record) then
      return 'gone'
    end
    return record and not record.buried and answer_again(message, record, body) or nil
  end,
}
