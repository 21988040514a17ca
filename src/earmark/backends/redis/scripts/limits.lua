-- Limits by their names: the letter of the algorithm, the window (whole seconds, or microseconds and a 'u'), ':' and the
-- metric. The usual metrics go by one letter each, any other has '=' in front. Twin: earmark.core.notation.

local kinds = {}

-- What a limit is, by its name. `unasked` is what a request asks that does not name the metric: where that is nothing the
-- limit is neither judged nor counted then.
local function kind_of(name)
  local kind = kinds[name]
  if not kind then
    local letter, length, unit, metric = match(name, '^(%l)(%d+)(u?):(.*)$')
    local usual = #metric == 1
    kind = {
      rules = use(letter == 'f' and 'fixed_window' or letter == 's' and 'sliding_window' or 'token_bucket'),
      metric = metric, unasked = metric == 'r' and 1 or usual and 0 or nil,
      json = usual and ',"' .. name .. '"' or ',' .. cjson.encode(name),
      window = unit == '' and length * 1000000 or length + 0,
    }
    kinds[name] = kind
  end
  return kind
end

-- The amount of a bucket, and its capacity: where that is another, it comes with both. Of all else they are one.
local function amounts_of(amount)
  if type(amount) == 'table' then
    return amount[1], amount[2]
  end
  return amount, amount
end
