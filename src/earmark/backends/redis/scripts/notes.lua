-- What few reservations have: 'id flags renewed', the id '-' where the key has it, the flags whether it was adopted (1)
-- and sent again (2), then when it was renewed, and ' position of a limit=generation' of limits that were reset, -1 where a
-- renewal has found a reset. Where it was adopted, ' @id' of every message by which, ' @*' for those that are not told
-- apart, and ' @!' once it was withdrawn by whoever made it. Twin: earmark.backends.book.

local function given_to(written)
  local given = {}
  for name in string.gmatch(written, ' @(%S+)') do
    given[name] = true
  end
  return given
end

local function read_notes(record, written)
  local owner, flags, renewed, generations = match(written, '^(%S+) (%d) (%d+)(.*)$')
  if owner ~= '-' then
    record.id, record.named = owner, true
  end
  record.given, record.again = flags % 2 == 1 and given_to(generations), flags + 0 >= 2
  record.renewed = renewed + 0
  record.generations = {}
  for position, generation in string.gmatch(generations, ' (%d+)=(%-?%d+)') do
    record.generations[position + 0] = generation + 0
  end
end

-- The whole record, with them.
local function with_notes(record)
  local flags = (record.given and 1 or 0) + (record.again and 2 or 0)
  local written = format('%s %d %d', record.named and record.id or '-', flags, record.renewed)
  for position, generation in pairs(record.generations or {}) do
    written = written .. format(' %d=%d', position, generation)
  end
  if record.given then
    for name in pairs(record.given) do
      written = written .. ' @' .. name
    end
  end
  return record.seen .. '\n' .. record.body .. '\n' .. written
end

return {read_notes = read_notes, with_notes = with_notes}
