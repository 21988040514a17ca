-- What a reset leaves in its scope, by the limit's name: {generation, end}. Holds from before it have nothing to give
-- back, which they find by the generation that they saw: no two resets of a limit have the same. It lives for as long as
-- such a hold would give anything back without it. Twin: the forgiven of MemoryStore.

-- Which reset of the limit was the last; 0 where no hold from before one can have anything to give back.
local function generation_of(scope, name, now)
  local reset = scope.resets and scope.resets[name]
  return reset and reset[2] > now and reset[1] or 0
end

-- Whether a hold is from before a reset, by the generation that it saw; below 0: it is known to be.
local function forgiven(scope, name, seen, now)
  local last = generation_of(scope, name, now)
  return seen < 0 or last > 0 and last ~= seen
end

-- What is to be written of those that are not over, and when the last of these and of all else is.
local function render_resets(resets, last, now)
  local parts = {}
  for name, reset in pairs(resets) do
    if reset[2] > now then
      parts[#parts + 1] = cjson.encode(name) .. format(':[%d,%d]', reset[1], reset[2])
      last = max(last, reset[2])
    end
  end
  return parts[1] and ',{' .. table.concat(parts, ',') .. '}' or '', last
end

return {generation_of = generation_of, forgiven = forgiven, render_resets = render_resets}
