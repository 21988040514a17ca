-- Open reservations: one string each, of two lines or three: the instant and what was seen; the message that made it;
-- and, where there is any of that to tell, the id ('-': the key has it), whether it was adopted (1) and sent again (2),
-- when it was renewed, and 'position of a limit=generation' of limits that were reset, -1 where a renewal has found a
-- reset. The message is [lease, asks, scope, ...], a scope [key, enforced, limit's name, amount or {amount, capacity},
-- ...]. Twin: earmark.backends.book, and earmark.core.hold for what a hold is.

local function read_notes(record, notes)
  local owner, flags, renewed, generations = string.match(notes, '^(%S+) (%d) (%d+)(.*)$')
  if owner ~= '-' then
    record.id, record.own = owner, false
  end
  record.adopted, record.again = tonumber(flags) % 2 == 1, tonumber(flags) >= 2
  record.renewed = tonumber(renewed)
  for position, generation in string.gmatch(generations, ' (%d+)=(%-?%d+)') do
    record.generations[tonumber(position)] = tonumber(generation)
  end
end

local function load_record(key)
  local kept = call('GET', key)
  if not kept then
    return nil
  end
  local first = string.find(kept, '\n', 1, true)
  if not first then  -- a grave: its end, and the name of the call that resolved it
    local over, winner = string.match(kept, '^(%d+) (.*)$')
    return tonumber(over) > clock and {buried = winner} or nil
  end
  local second = string.find(kept, '\n', first + 1, true)
  local at, seen = string.match(kept, '^(%d+)([^\n]*)')
  local record = {
    key = key, id = string.match(key, '^[^:]*:r:(.*)$'), own = true, at = tonumber(at), renewed = 0, adopted = false,
    again = false, seen = seen, generations = {}, body = string.sub(kept, first + 1, (second or 0) - 1),
  }
  if second then
    read_notes(record, string.sub(kept, second + 1))
  end
  return max(record.at, record.renewed) + KEEP > clock and record or nil
end

local function write_record(record)
  local kept = format('%d', record.at) .. record.seen .. '\n' .. record.body
  local flags = (record.adopted and 1 or 0) + (record.again and 2 or 0)
  local generations = ''
  for position, generation in pairs(record.generations) do
    generations = generations .. format(' %d=%d', position, generation)
  end
  if not record.own or flags + record.renewed > 0 or generations ~= '' then
    kept = kept .. format('\n%s %d %d', record.own and '-' or record.id, flags, record.renewed) .. generations
  end
  call('SET', record.key, kept, 'PX', ttl(max(record.at, record.renewed) + KEEP))
end
