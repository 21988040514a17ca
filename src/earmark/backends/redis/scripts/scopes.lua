-- The counts of one scope: one string of JSON, [latest instant, states by limit's name, resets by limit's name].
-- What is over is left out by the next write, and the key lives as long as the last of its states.
-- Twin: earmark.backends.tables, which keep the same for all keys of one limit.

-- Returns the scope, and its latest instant.
local function load_scope(key, parts)
  local text = call('GET', key)
  local counts = text and cjson.decode(text)
  local scope = {
    key = key, parts = parts, states = counts and counts[2] or {}, resets = counts and counts[3],
    changed = false, text = false, ttl = false,
  }
  return scope, counts and counts[1] or 0
end

-- Compute what is to be written, at least until the last lease of its slots; whatever goes wrong goes wrong here.
local function render(scope, last, now)
  local text
  for name, state in pairs(scope.states) do
    local kind = kind_of(name)
    local over = kind.rules.ends(kind, state)
    if over > now then
      local written = kind.json .. kind.rules.write(state)
      text = text and text .. ',' .. written or written
      last = max(last, over)
    end
  end
  text = format('[%d,{', now) .. (text or '') .. '}'
  if scope.resets then
    local rendered
    rendered, last = use(resets).render_resets(scope.resets, last, now)
    text = text .. rendered
  end
  scope.text = last > now and text .. ']'
  scope.ttl = ttl(last)
end

local function write_scope(scope)
  if scope.text then
    call('SET', scope.key, scope.text, 'PX', scope.ttl)
  else
    call('DEL', scope.key)
  end
end
