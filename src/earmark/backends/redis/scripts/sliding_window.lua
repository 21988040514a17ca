-- Twin: earmark.core.sliding_window. A state is the number of its window, since the beginning of time, its count, and that
-- of the window before.

local function window_of(kind, instant)
  return (instant - instant % kind.window) / kind.window
end

local function look(kind, counts, at, window)
  local last = at and counts[at + 1]
  if last == window then
    return counts[at + 2], counts[at + 3]
  end
  return 0, last and last + 1 == window and counts[at + 2] or 0
end

return {
  numbers = 3,

  see = function(kind, amount, counts, at, now)
    local window = kind.window
    local current, previous = look(kind, counts, at, window_of(kind, now))
    local exact = current + previous * ((window - now % window) / window)
    local scale = max(amount * 1.0, current * 1.0 + previous)
    return min(max(ceil(exact - scale * TOLERANCE), 0), MAX_AMOUNT), format(' %d %d', current, previous)
  end,

  debit = function(kind, amount, counts, at, units, now)
    local window = window_of(kind, now)
    local current, previous = look(kind, counts, at, window)
    counts[at + 1], counts[at + 2], counts[at + 3] = window, min(current + units, MAX_AMOUNT), previous
  end,

  -- The state stays that of its window: what is given back must not make it live longer.
  give_back = function(kind, amount, counts, at, units, taken, now)
    local window, taken_in = counts[at + 1], window_of(kind, taken)
    if window_of(kind, now) - taken_in > 1 then
      return
    end
    if taken_in == window then
      counts[at + 2] = max(counts[at + 2] - units, 0)
    elseif taken_in + 1 == window then
      counts[at + 3] = max(counts[at + 3] - units, 0)
    end
  end,

  -- Until when what was taken before now can be given back; without a state, nothing can.
  returns_until = function(kind, at, now)
    return at and now - now % kind.window + 2 * kind.window
  end,

  ends = function(kind, counts, at)
    return (counts[at + 1] + 2) * kind.window
  end,

  write = function(counts, at)
    return format(',%d,%d,%d', counts[at + 1], counts[at + 2], counts[at + 3])
  end,
}
