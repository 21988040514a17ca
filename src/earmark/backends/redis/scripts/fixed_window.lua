-- Twin: earmark.core.fixed_window. A state is {start of its window, count}.

local function fixed_window()
  return {
    see = function(kind, amount, state, now)
      local count = state and state[1] == now - now % kind.window and state[2] or 0
      return count, format('%d', count)
    end,

    debit = function(kind, amount, state, units, now)
      local start = now - now % kind.window
      return {start, min((state and state[1] == start and state[2] or 0) + units, MAX_AMOUNT)}
    end,

    give_back = function(kind, amount, state, units, taken, now)
      local start = now - now % kind.window
      if state[1] == start and taken >= start then
        return {start, max(state[2] - units, 0)}
      end
      return state
    end,

    -- Until when what was taken before now can be given back; without a state, nothing can.
    returns_until = function(kind, state, now)
      return state and now - now % kind.window + kind.window
    end,

    ends = function(kind, state)
      return state[1] + kind.window
    end,

    write = function(state)
      return format(':[%d,%d]', state[1], state[2])
    end,
  }
end
