-- Twin: earmark.core.token_bucket. A state is {name, used, when it was written, amount of the limit that wrote it}.
-- The operations on doubles are those of the twin, in its order.

local function ends(kind, state)
  local used_then, written, amount = state[2], state[3], state[4]
  if amount == 0 then
    return written + kind.window
  end
  return max(written + kind.window, written + ceil(used_then * 1.0 * kind.window / amount))
end

local function drained(kind, amount, state, now)
  if not state or now >= ends(kind, state) then
    return 0.0
  end
  return max(state[2] - (now - state[3]) * 1.0 * amount / kind.window, 0.0)
end

return {
  used = function(kind, amount, state, now)
    local scale = max(amount * 1.0, state and state[2] or 0.0)
    return min(max(ceil(drained(kind, amount, state, now) - scale * TOLERANCE), 0), MAX_AMOUNT)
  end,

  tell = function(kind, state)
    return state and format('%.17g %.0f %.0f', state[2], state[3], state[4]) or '0 0 0'
  end,

  debit = function(kind, amount, state, units, now)
    return {kind.name, min(drained(kind, amount, state, now) + units, MAX_AMOUNT * 1.0), now, amount}
  end,

  give_back = function(kind, amount, state, units, taken, now)
    return {kind.name, max(drained(kind, amount, state, now) - units, 0.0), now, amount}
  end,

  ends = ends,

  write = function(kind, state)
    return format('[%s,%.17g,%.0f,%.0f]', kind.json, state[2], state[3], state[4])
  end,
}
