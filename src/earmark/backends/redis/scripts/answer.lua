-- Answer every message of the call, in order, each by itself: one that fails disturbs no other, and changes nothing, since
-- each reads and computes all before it writes.
-- A message is one argument, 'number-of-keys named again verb id body', the verb for whoever watches. Its answer is the
-- id, '?' where it cannot be read, and a word with the numbers that were seen, as one text or two; a zero byte stands
-- between two answers, since one string is read faster than many.

local answers = {}

for position = FIRST_MESSAGE, #ARGV do
  local message = ARGV[position]
  local keys, is_named, is_again
  keys, is_named, is_again, id, text = match(message, '^(%d+) (%d) (%d) %a+ (%S+) (.*)$')
  last_key = used_keys + (keys or match(message, '^%d+'))
  named, meant, again = is_named ~= '0', is_named == '2', is_again == '1'
  local worked, answer, more = pcall(id and answer_message)
  if not worked then
    local failure = answer  -- what is no text is one of the server's error replies, or a test double's exception
    answer = 'failed ' .. (type(failure) == 'table' and failure.err or tostring(failure))
  end
  answers[#answers + 1] = (id or '?') .. ' ' .. answer .. (more or '')
  used_keys = last_key
end

return table.concat(answers, '\0')
