-- Twin: earmark.core.fixed_window. A state is {name, start of its window, count}.

local function look(kind, amount, state, now)
  return state and state[2] == now - now % kind.window and state[3] or 0
end

return {
  used = look,

  tell = function(kind, state, now)
    return format('%.0f', look(kind, 0, state, now))
  end,

  debit = function(kind, amount, state, units, now)
    return {kind.name, now - now % kind.window, min(look(kind, amount, state, now) + units, MAX_AMOUNT)}
  end,

  give_back = function(kind, amount, state, units, taken, now)
    local start = now - now % kind.window
    if state[2] == start and taken >= start then
      return {kind.name, start, max(state[3] - units, 0)}
    end
    return state
  end,

  ends = function(kind, state)
    return state[2] + kind.window
  end,

  write = function(kind, state)
    return format('[%s,%.0f,%.0f]', kind.json, state[2], state[3])
  end,
}
