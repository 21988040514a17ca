-- The counts of one scope: one list in JSON. Its latest instant; resets by limit's name, where there are any; and of every
-- limit that counts its name, with the numbers of its state behind it.
-- What is over is left out by the next write, and the key lives as long as the last of its states.
-- Twin: earmark.backends.tables, which keep the same for all keys of one limit.

-- An instant as text; mostly there is one in a call.
local told_of, told

local function instant(now)
  if now ~= told_of then
    told_of, told = now, format('%d', now)
  end
  return told
end

-- Returns the scope, and its latest instant. The first state of its counts begins at 2.
local function load_scope(key, parts)
  local written = call('GET', key)
  local counts = written and cjson.decode(written) or {0}
  local scope, second = {key = key, parts = parts, counts = counts, changed = false}, counts[2]
  if second and #second == 0 then  -- no name has no letters, and resets have nothing but names
    scope.resets = second
    for at = 2, #counts do
      counts[at] = counts[at + 1]
    end
  end
  return scope, counts[1]
end

-- Where the state of a limit begins, by its name; nothing, where it has none.
local function place_of(scope, name)
  local counts = scope.counts
  for at = 2, #counts do
    if counts[at] == name then
      return at
    end
  end
end

-- Where the state of a limit that has none is to begin.
local function begin_at(counts, name)
  local at = #counts + 1
  counts[at] = name
  return at
end

-- Count more of a limit.
local function debit(scope, kind, name, amount, at, units, now)
  local counts = scope.counts
  kind.rules.debit(kind, amount, counts, at or begin_at(counts, name), units, now)
  scope.changed = true
end

-- Compute what is to be written, at least until the last lease of its slots; whatever goes wrong goes wrong here. From here
-- on the counts are their text, false where there are none, and what has changed has its TTL: two fields more, and each
-- scope would cost twice as much to make.
local function render(scope, last, now)
  local counts, at, rendered, name, state = scope.counts, 2, '', '', ''
  local size = #counts
  while at <= size do
    local kind = kinds[counts[at]] or kind_of(counts[at])
    local rules = kind.rules
    local over = rules.ends(kind, counts, at)
    if over > now then
      -- The last of them goes into the whole at once: Lua looks for each text that it makes among all that there are.
      rendered, name, state = rendered .. name .. state, kind.json, rules.write(counts, at)
      last = last < over and over or last
    end
    at = at + 1 + rules.numbers
  end
  if scope.resets then
    local others = rendered
    rendered, last = use('resets').render_resets(scope.resets, last, now)
    rendered = rendered .. others
  end
  scope.counts = last > now and '[' .. instant(now) .. rendered .. name .. state .. ']'
  scope.changed = ttl(last)
end

local function write_scope(scope)
  if scope.counts then
    call('SET', scope.key, scope.counts, 'PX', scope.changed)
  else
    call('DEL', scope.key)
  end
end
