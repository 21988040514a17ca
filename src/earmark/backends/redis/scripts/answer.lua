-- Answer every message of the call, in order, each by itself: one that fails changes nothing and disturbs no other.
-- A message is one argument, 'verb id number-of-keys named again body'. Its answer is the id, and a word with the numbers
-- that were seen; a zero byte stands between two answers, since one string is read faster than many.

-- The reason of a failure; what is no text is one of the server's error replies, or a test double's exception.
local function reason(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end

local function read_clock()
  if ARGV[1] ~= '' then
    return tonumber(ARGV[1])
  end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

local clock, answers = read_clock(), {}
local used_keys, last_key = 0, 0

local function next_key()
  if used_keys < last_key then
    used_keys = used_keys + 1
    return KEYS[used_keys]
  end
end

local message = {now = clock, next_key = next_key}

for position = FIRST_MESSAGE, #ARGV do
  local verb, id, keys, named, again, body = string.match(ARGV[position], '^(%a+) (%S+) (%d+) (%d) (%d) (.*)$')
  last_key = used_keys + tonumber(keys)
  message.id, message.body = id, body
  message.named, message.again = named == '1', again == '1'
  local worked, answer = pcall(use(verb), message)
  answers[#answers + 1] = id .. ' ' .. (worked and answer or 'failed ' .. reason(answer))
  used_keys = last_key
end

return table.concat(answers, '\0')
