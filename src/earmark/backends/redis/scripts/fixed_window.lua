-- Twin: earmark.core.fixed_window. A state is the number of its window, since the beginning of time, and the count.

local function window_of(kind, instant)
  return (instant - instant % kind.window) / kind.window
end

return {
  numbers = 2,

  see = function(kind, amount, counts, at, now)
    local window = kind.window
    local count = at and counts[at + 1] == (now - now % window) / window and counts[at + 2] or 0
    return count, format(' %d', count)
  end,

  debit = function(kind, amount, counts, at, units, now)
    local window = kind.window
    window = (now - now % window) / window
    local count = (counts[at + 1] == window and counts[at + 2] or 0) + units
    counts[at + 1], counts[at + 2] = window, count < MAX_AMOUNT and count or MAX_AMOUNT
  end,

  give_back = function(kind, amount, counts, at, units, taken, now)
    local window = window_of(kind, now)
    if counts[at + 1] == window and window_of(kind, taken) >= window then
      counts[at + 2] = max(counts[at + 2] - units, 0)
    end
  end,

  -- Until when what was taken before now can be given back; without a state, nothing can.
  returns_until = function(kind, at, now)
    return at and now - now % kind.window + kind.window
  end,

  ends = function(kind, counts, at)
    return (counts[at + 1] + 1) * kind.window
  end,

  write = function(counts, at)
    return format(',%d,%d', counts[at + 1], counts[at + 2])
  end,
}
