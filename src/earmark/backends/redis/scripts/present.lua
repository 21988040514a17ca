-- Note that a process is alive, and count those that are. Key: the set of them, in which each has a place under a lease as
-- the holder of a slot has. The body is the lease. Twin: earmark.backends.redis.replicas, which says so.

local function answer_message()
  local key = next_key()
  use('slots').take_slot(key, id, text + 0, use('slots').last_of_others(key, id), clock)
  return format('alive %d', use('slots').live_slots(key, clock))
end
