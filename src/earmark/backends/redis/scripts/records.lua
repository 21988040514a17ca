-- Open reservations: one string each, a line of JSON and, below it, the message that made it.
-- The line is [id or 0, at, renewed, adopted + 2 * sent again, "what it saw", position of a limit, generation, ...]; the
-- id is 0 where the key has it, and a generation -1 where its renewal has found a reset. The message is [lease, asks, scope, ...], a scope [key, enforced, limit's name,
-- amount or {amount, capacity}, ...]. Twin: earmark.backends.book, and earmark.core.hold for what a hold is.

-- The id of a reservation under whose record's key.
local function id_of(key)
  return string.match(key, '^[^:]*:r:(.*)$')
end

local function load(key, now)
  local text = call('GET', key)
  if not text then
    return nil
  end
  local newline = string.find(text, '\n', 1, true)
  local line = cjson.decode(newline and string.sub(text, 1, newline - 1) or text)
  if not newline then  -- a grave: [end, name of the call that resolved it]
    return line[1] > now and {buried = line[2]} or nil
  end
  if max(line[2], line[3]) + KEEP <= now then
    return nil
  end
  local generations = {}
  for position = 6, #line, 2 do
    generations[line[position]] = line[position + 1]
  end
  return {
    key = key, own = line[1] == 0, id = line[1] == 0 and id_of(key) or line[1], at = line[2], renewed = line[3],
    adopted = line[4] % 2 == 1, again = line[4] >= 2, seen = line[5], generations = generations,
    body = string.sub(text, newline + 1),
  }
end

-- `id` is left out where the key has it.
local function write(key, id, at, renewed, adopted, again, seen, generations, body)
  local marks = ''
  for number, generation in pairs(generations) do
    marks = marks .. format(',%d,%d', number, generation)
  end
  local flags = (adopted and 1 or 0) + (again and 2 or 0)
  local line = format('[%s,%d,%d,%d,"%s"%s]', id and '"' .. id .. '"' or '0', at, renewed, flags, seen, marks)
  call('SET', key, line .. '\n' .. body, 'PX', ttl(max(at, renewed) + KEEP))
end

local function save(record)
  write(
    record.key, not record.own and record.id, record.at, record.renewed, record.adopted, record.again,
    record.seen, record.generations, record.body
  )
end

return {id_of = id_of, load = load, write = write, save = save}
