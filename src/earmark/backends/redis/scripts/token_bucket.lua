-- Twin: earmark.core.token_bucket. A state is {used, when it was written, amount of the limit that wrote it}.
-- The operations on doubles are those of the twin, in its order.

local function token_bucket()
  local function ends(kind, state)
    local used_then, written, amount = state[1], state[2], state[3]
    if amount == 0 then
      return written + kind.window
    end
    return max(written + kind.window, written + ceil(used_then * 1.0 * kind.window / amount))
  end

  local function drained(kind, amount, state, now)
    if not state or now >= ends(kind, state) then
      return 0.0
    end
    return max(state[1] - (now - state[2]) * 1.0 * amount / kind.window, 0.0)
  end

  return {
    see = function(kind, amount, state, now)
      if not state then
        return 0, '0 0 0'
      end
      local scale = max(amount * 1.0, state[1])
      local used = min(max(ceil(drained(kind, amount, state, now) - scale * TOLERANCE), 0), MAX_AMOUNT)
      return used, format('%.17g %d %d', state[1], state[2], state[3])
    end,

    debit = function(kind, amount, state, units, now)
      return {min(drained(kind, amount, state, now) + units, MAX_AMOUNT * 1.0), now, amount}
    end,

    give_back = function(kind, amount, state, units, taken, now)
      return {max(drained(kind, amount, state, now) - units, 0.0), now, amount}
    end,

    -- Until when what was taken before now can be given back: for as long as its reservation is kept, since nothing is
    -- lost to the end of a window, whatever the bucket holds by then. One that is renewed notes the reset when it is, so
    -- that the mark need not outlive every reservation. Twice as long is enough for counts that are ahead of the clock.
    returns_until = function(kind, state, now)
      return now + 2 * KEEP
    end,

    ends = ends,

    write = function(state)
      return format(':[%.17g,%d,%d]', state[1], state[2], state[3])
    end,
  }
end
