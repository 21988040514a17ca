-- Twin: earmark.core.fixed_window. A state is {name, start of its window, count}.

local function look(kind, state, now)
  return state and state[2] == now - now % kind.window and state[3] or 0
end

return {
  see = function(kind, amount, state, now)
    local count = look(kind, state, now)
    return count, format('%d', count)
  end,

  debit = function(kind, amount, state, units, now)
    return {kind.name, now - now % kind.window, min(look(kind, state, now) + units, MAX_AMOUNT)}
  end,

  give_back = function(kind, amount, state, units, taken, now)
    local start = now - now % kind.window
    if state[2] == start and taken >= start then
      return {kind.name, start, max(state[3] - units, 0)}
    end
    return state
  end,

  -- Until when what was taken before now can be given back; without a state, nothing can.
  returns_until = function(kind, state, now)
    return state and now - now % kind.window + kind.window
  end,

  ends = function(kind, state)
    return state[2] + kind.window
  end,

  write = function(kind, state)
    return format('[%s,%d,%d]', kind.json, state[2], state[3])
  end,
}
