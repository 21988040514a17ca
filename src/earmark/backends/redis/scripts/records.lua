-- Open reservations: one string each, of two lines or three: the instant and what was seen; the message that made it;
-- and its notes, where there are any. The message is [lease, asks, scope, ...], a scope [key, limit's name, amount or
-- {amount, capacity}, ..., 0 where it is not enforced]. Twin: earmark.backends.book, and earmark.core.hold for what a hold is.

-- The id of the reservation whose record has a key.
local function id_of(key)
  return string.match(key, '^[^:]*:r%d*:(.*)$')
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
  local record = {
    key = key, id = id_of(key), at = tonumber(string.match(kept, '^%d+')), renewed = 0,
    seen = string.sub(kept, 1, first - 1), body = string.sub(kept, first + 1, (second or 0) - 1),
  }
  if second then
    use(notes).read_notes(record, string.sub(kept, second + 1))
  end
  return max(record.at, record.renewed) + KEEP > clock and record or nil
end

-- The lease of its slots, in microseconds: a message has it in seconds.
local function lease_of(body)
  return ceil(body[1] * 1000000 - 0.5)
end

-- `last` is when it was made or renewed last.
local function write_record(key, kept, last)
  call('SET', key, kept, 'PX', ttl(last + KEEP))
end
