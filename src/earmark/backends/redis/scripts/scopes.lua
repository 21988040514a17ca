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

-- Returns the scope, and its latest instant.
local function load_scope(key, parts)
  local written = call('GET', key)
  local counts = written and cjson.decode(written) or {0}
  local second = counts[2]
  local resets = second and #second == 0 and second  -- no name has no letters, and resets have nothing but names
  local scope = {
    key = key, parts = parts, counts = counts, first = resets and 3 or 2, resets = resets,
    changed = false, text = false, ttl = false,
  }
  return scope, counts[1]
end

-- Where the state of a limit begins, by its name; nothing, where it has none.
local function place_of(scope, name)
  local counts = scope.counts
  for at = scope.first, #counts do
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

-- Compute what is to be written, at least until the last lease of its slots; whatever goes wrong goes wrong here.
local function render(scope, last, now)
  local counts, at, rendered = scope.counts, scope.first, ''
  local size = #counts
  while at <= size do
    local kind = kinds[counts[at]] or kind_of(counts[at])
    local rules = kind.rules
    local over = rules.ends(kind, counts, at)
    if over > now then
      rendered = rendered .. kind.json .. rules.write(counts, at)
      last = last < over and over or last
    end
    at = at + 1 + rules.numbers
  end
  if scope.resets then
    local others = rendered
    rendered, last = use('resets').render_resets(scope.resets, last, now)
    rendered = rendered .. others
  end
  scope.text = last > now and '[' .. instant(now) .. rendered .. ']'
  scope.ttl = ttl(last)
end

local function write_scope(scope)
  if scope.text then
    call('SET', scope.key, scope.text, 'PX', scope.ttl)
  else
    call('DEL', scope.key)
  end
end
