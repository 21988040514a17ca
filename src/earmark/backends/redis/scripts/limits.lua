-- Limits by their names: the letter of the algorithm, the window (whole seconds, or microseconds and a 'u'), ':' and the
-- metric. The usual metrics go by one letter each, any other has '=' in front. Twin: earmark.core.notation.

local ALGORITHMS = {f = fixed_window, s = sliding_window, b = token_bucket}

-- What a request asks that does not name the metric; what is not here is neither judged nor counted then.
local UNASKED = {r = 1, t = 0, i = 0, o = 0, u = 0, n = 0}

local kinds = {}

local function kind_of(name)
  local kind = kinds[name]
  if not kind then
    local colon = string.find(name, ':', 1, true)
    local length = string.sub(name, 2, colon - 1)
    local seconds = tonumber(length)
    kind = {
      rules = use(ALGORITHMS[string.sub(name, 1, 1)]), metric = string.sub(name, colon + 1), json = cjson.encode(name),
      window = seconds and seconds * 1000000 or tonumber(string.sub(length, 1, -2)),
    }
    kinds[name] = kind
  end
  return kind
end
