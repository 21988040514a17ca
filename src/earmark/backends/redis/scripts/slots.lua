-- The slots of one scope: one sorted set, whose members are ids of reservations and their scores the ends of leases.
-- Twin: earmark.core.slots, and the leases of earmark.backends.book.

local function live_slots(key, now)
  return call('ZCOUNT', key, format('(%d', now), '+inf')
end

-- The lease of its slots, in microseconds: a message has it in seconds.
local function lease_of(body)
  return ceil(body[1] * 1000000 - 0.5)
end

-- When the last lease of others ends; 0: there are none.
local function last_of_others(key, id)
  local found = call('ZREVRANGE', key, 0, 1, 'WITHSCORES')
  return tonumber(found[1] == id and found[4] or found[1] ~= id and found[2] or 0)
end

-- When a lease ends that has not lapsed; else nothing: one that has is never revived.
local function lease_end(key, id, now)
  local over = tonumber(call('ZSCORE', key, id) or 0)
  return over > now and over or nil
end

-- Take a slot, or keep one that is `held` until then for longer: for less it never is, whatever the clock does (R11).
-- Lapsed ones are dropped, and the key lives until the last lease ends. The first command changes only a slot that is
-- there, but a full server refuses it as it would the one below: after another write it lets all through. So does a
-- missing right show before there is a slot, or a key without an end.
local function take_slot(key, id, lease, last, now, held)
  local mine = max(now + lease, held or 0)
  local over = max(mine, last)
  call('ZADD', key, 'XX', format('%d', mine), id)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', now))
  local there = call('PEXPIRE', key, ttl(over))
  call('ZADD', key, format('%d', mine), id)
  if there ~= 1 then
    call('PEXPIRE', key, ttl(over))
  end
end

-- Others whose leases have lapsed go as well, but never by a second command on a key that is empty by then: while the
-- slot of a cluster is moved to another node, a key that is gone is not this node's any more.
local function free_slot(key, id, last, now)
  if last <= now then
    call('DEL', key)
    return
  end
  call('ZREM', key, id)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', now))
  call('PEXPIRE', key, ttl(last))
end

return {
  lease_of = lease_of, live_slots = live_slots, last_of_others = last_of_others, lease_end = lease_end, take_slot = take_slot,
  free_slot = free_slot,
}
