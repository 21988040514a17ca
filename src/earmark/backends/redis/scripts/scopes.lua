-- The counts of one scope: one string of JSON, [latest instant, state, ...], each state with its name in front.
-- A name is the letter of the algorithm, the window (whole seconds, or microseconds and a 'u'), ':' and the metric.
-- What is over is left out by the next write, and the key lives as long as the last of its states.
-- Twin: earmark.backends.tables, which keep the same for all keys of one limit.

local FILES = {f = 'fixed_window', s = 'sliding_window', b = 'token_bucket', ['!'] = 'reset_mark'}

local kinds = {}

local function kind_of(name)
  local kind = kinds[name]
  if not kind then
    local letter, length, unit, metric = string.match(name, '^(.)%a?(%d+)(u?):(.*)$')
    kind = {
      name = name, json = cjson.encode(name), rules = use(FILES[letter]),
      window = tonumber(length) * (unit == 'u' and 1 or 1000000), metric = letter ~= '!' and metric,
    }
    kinds[name] = kind
  end
  return kind
end

local function load(key)
  local scope = {key = key, at = 0, states = {}, lasts = 0}
  local text = call('GET', key)
  if text then
    local record = cjson.decode(text)
    scope.at = record[1]
    for position = 2, #record do
      local state = record[position]
      local name = state[1]
      scope.states[name] = state
      scope.marked = scope.marked or string.byte(name) == 33
    end
  end
  return scope
end

-- Compute what is to be written; whatever goes wrong goes wrong here.
local function render(scope, now)
  local parts, last = {format('[%d', now)}, scope.lasts
  for name, state in pairs(scope.states) do
    local kind = kind_of(name)
    local over = kind.rules.ends(kind, state)
    if over > now then
      parts[#parts + 1] = kind.rules.write(kind, state)
      last = max(last, over)
    end
  end
  scope.text = last > now and table.concat(parts, ',') .. ']'
  scope.ttl = ttl(last)
end

local function write(scope)
  if scope.text then
    call('SET', scope.key, scope.text, 'PX', scope.ttl)
  else
    call('DEL', scope.key)
  end
end

-- The state under a name; nil where it is over.
local function live(scope, name, now)
  local state = scope.states[name]
  local kind = state and kind_of(name)
  return kind and kind.rules.ends(kind, state) > now and state or nil
end

-- Which reset of the limit was the last; 0 where no hold from before one can have anything to give back.
local function generation(scope, name, now)
  local mark = scope.marked and live(scope, '!' .. name, now)
  return mark and mark[2] or 0
end

-- Whether a hold is from before a reset, by the generation that it saw; below 0: it is known to be.
local function forgiven(scope, name, seen, now)
  local last = generation(scope, name, now)
  return seen < 0 or last > 0 and last ~= seen
end

return {
  kind_of = kind_of, load = load, render = render, write = write, live = live, generation = generation,
  forgiven = forgiven,
}
