-- Twin: earmark.core.sliding_window. A state is {start of its window, count, count of the window before}.

local function sliding_window()
  local function look(kind, state, now)
    local start = now - now % kind.window
    if state and state[1] == start then
      return state[2], state[3]
    end
    return 0, state and state[1] + kind.window == start and state[2] or 0
  end

  return {
    see = function(kind, amount, state, now)
      local window = kind.window
      local current, previous = look(kind, state, now)
      local exact = current + previous * ((window - now % window) / window)
      local scale = max(amount * 1.0, current * 1.0 + previous)
      return min(max(ceil(exact - scale * TOLERANCE), 0), MAX_AMOUNT), format('%d %d', current, previous)
    end,

    debit = function(kind, amount, state, units, now)
      local current, previous = look(kind, state, now)
      return {now - now % kind.window, min(current + units, MAX_AMOUNT), previous}
    end,

    -- The state stays that of its window: what is given back must not make it live longer.
    give_back = function(kind, amount, state, units, taken, now)
      local window, start, current, previous = kind.window, state[1], state[2], state[3]
      local taken_in = taken - taken % window
      if now - now % window - taken_in > window then
        return state
      end
      if taken_in == start then
        current = max(current - units, 0)
      elseif taken_in + window == start then
        previous = max(previous - units, 0)
      end
      return {start, current, previous}
    end,

    -- Until when what was taken before now can be given back; without a state, nothing can.
    returns_until = function(kind, state, now)
      return state and now - now % kind.window + 2 * kind.window
    end,

    ends = function(kind, state)
      return state[1] + 2 * kind.window
    end,

    write = function(state)
      return format(':[%d,%d,%d]', state[1], state[2], state[3])
    end,
  }
end
