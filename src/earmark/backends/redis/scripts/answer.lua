-- Answer every message of the call, in order, each by itself: one that fails disturbs no other, and changes nothing, since
-- each reads and computes all before it writes.
-- A message is one argument, 'number-of-keys named again verb id body'. Its answer is the id, '?' where it cannot be read,
-- and a word with the numbers that were seen; a zero byte stands between two answers, since one string is read faster
-- than many.

-- The reason of a failure; what is no text is one of the server's error replies, or a test double's exception.
local function reason(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end

local answers = {}
local used_keys, last_key = 0, 0

local function next_key()
  if used_keys < last_key then
    used_keys = used_keys + 1
    return KEYS[used_keys]
  end
end

local function has_more_keys()
  return used_keys < last_key
end

local message = {now = clock, next_key = next_key, has_more_keys = has_more_keys}

local function answer_one(verb)
  return use(verb)(message)
end

for position = FIRST_MESSAGE, #ARGV do
  local text = ARGV[position]
  local keys, named, again, verb, id, body = string.match(text, '^(%d+) (%d) (%d) (%a+) (%S+) (.*)$')
  last_key = used_keys + tonumber(keys or string.match(text, '^%d+'))
  message.id, message.body = id, body
  message.named, message.again = named == '1', again == '1'
  local worked, answer = pcall(answer_one, verb)
  answers[#answers + 1] = (id or '?') .. ' ' .. (worked and answer or 'failed ' .. reason(answer))
  used_keys = last_key
end

return table.concat(answers, '\0')
