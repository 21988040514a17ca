-- The slots of one scope: one sorted set, whose members are ids of reservations and their scores the ends of leases.
-- Twin: earmark.core.slots, and the leases of earmark.backends.book.

-- Drop the slots whose lease is over, and let the key live until the last lease ends; returns that moment.
local function settle(key, now)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', now))
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not last then
    return 0
  end
  call('PEXPIRE', key, ttl(tonumber(last) - now))
  return tonumber(last)
end

local function take(key, id, lease, now)
  call('ZADD', key, format('%d', now + lease), id)
  return settle(key, now)
end

return {
  take = take,

  live = function(key, now)
    return call('ZCOUNT', key, format('(%d', now), '+inf')
  end,

  free = function(key, id, now)
    call('ZREM', key, id)
    return settle(key, now)
  end,

  -- Extend a lease that has not lapsed; one that has is never revived.
  renew = function(key, id, lease, now)
    local over = call('ZSCORE', key, id)
    if not over or tonumber(over) <= now then
      return false
    end
    take(key, id, lease, now)
    return true
  end,
}
