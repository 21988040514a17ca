-- Open reservations: one string each, of two lines or three: the instant and what was seen; the message that made it;
-- and its notes, where there are any. The message is [lease, asks, scope, ...], a scope [key, limit's name, amount or
-- {amount, capacity}, ..., 0 where it is not enforced]. Twin: earmark.backends.book, and earmark.core.hold for what a hold is.

-- What stands under a key: an open reservation, or the grave of one. `owner` is whose it is where its notes do not say.
local function load_record(key, owner)
  local kept = call('GET', key)
  if not kept then
    return nil
  end
  local first = string.find(kept, '\n', 1, true)
  if not first then  -- a grave: its end, and the name of the call that resolved it
    local over, winner = match(kept, '^(%d+) (.*)$')
    return over + 0 > clock and {buried = winner} or nil
  end
  local second = string.find(kept, '\n', first + 1, true)
  local record = {
    key = key, id = owner, at = match(kept, '^%d+') + 0, renewed = 0,
    seen = string.sub(kept, 1, first - 1), body = string.sub(kept, first + 1, (second or 0) - 1),
  }
  if second then
    use('notes').read_notes(record, string.sub(kept, second + 1))
  end
  return max(record.at, record.renewed) + KEEP > clock and record or nil
end

-- `last` is when it was made or renewed last; `option`, NX: what is there stays, and the answer is false.
local function write_record(key, kept, last, option)
  if option then
    return call('SET', key, kept, 'PX', ttl(last + KEEP), option)
  end
  return call('SET', key, kept, 'PX', ttl(last + KEEP))
end
