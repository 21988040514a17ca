-- Twin: earmark.core.token_bucket. A state is what is used, when it was written, and the amount of the limit that wrote it.
-- The operations on doubles are those of the twin, in its order.

local function ends(kind, counts, at)
  local used_then, written, amount = counts[at + 1], counts[at + 2], counts[at + 3]
  if amount == 0 then
    return written + kind.window
  end
  return max(written + kind.window, written + ceil(used_then * 1.0 * kind.window / amount))
end

local function drained(kind, amount, counts, at, now)
  if not counts[at + 1] or now >= ends(kind, counts, at) then
    return 0.0
  end
  return max(counts[at + 1] - (now - counts[at + 2]) * 1.0 * amount / kind.window, 0.0)
end

local function put(counts, at, used, now, amount)
  counts[at + 1], counts[at + 2], counts[at + 3] = used, now, amount
end

return {
  bursts = true,
  numbers = 3,

  see = function(kind, amount, counts, at, now)
    if not at then
      return 0, ' 0 0 0'
    end
    local used = counts[at + 1]
    local scale = max(amount * 1.0, used)
    local in_use = min(max(ceil(drained(kind, amount, counts, at, now) - scale * TOLERANCE), 0), MAX_AMOUNT)
    return in_use, format(' %.17g %d %d', used, counts[at + 2], counts[at + 3])
  end,

  debit = function(kind, amount, counts, at, units, now)
    put(counts, at, min(drained(kind, amount, counts, at, now) + units, MAX_AMOUNT * 1.0), now, amount)
  end,

  give_back = function(kind, amount, counts, at, units, taken, now)
    put(counts, at, max(drained(kind, amount, counts, at, now) - units, 0.0), now, amount)
  end,

  -- Until when what was taken before now can be given back: for as long as its reservation is kept, since nothing is
  -- lost to the end of a window, whatever the bucket holds by then. One that is renewed notes the reset when it is, so
  -- that the mark need not outlive every reservation. Twice as long is enough for counts that are ahead of the clock.
  returns_until = function(kind, at, now)
    return now + 2 * KEEP
  end,

  ends = ends,

  write = function(counts, at)
    return format(',%.17g,%d,%d', counts[at + 1], counts[at + 2], counts[at + 3])
  end,
}
