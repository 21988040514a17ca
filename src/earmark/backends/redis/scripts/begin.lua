-- What all scripts share: the arguments of a call, its instant, its keys and whole numbers.
-- A script is the files that its verb needs, one below the other, and whatever stands outside of functions is run at every
-- call, their making included: what few calls need is within a function, from which `use` takes it.
-- Lua has doubles alone: whole microseconds and amounts up to 2^53 - 1 are exact in them, and leave as text.
-- Products are forced to be doubles, since a newer Lua would multiply integers, which overflow. Text of digits becomes a
-- number by `+ 0`, at a third of what `tonumber` costs.

local call, format, match, ceil = redis.call, string.format, string.match, math.ceil

local MAX_AMOUNT = 9007199254740991
local MAX_TTL = 4503599627370496
local TOLERANCE = 2.0 ^ -48

-- As math.max and math.min, at a third of what a call out of Lua costs.
local function max(one, other)
  return one < other and other or one
end

local function min(one, other)
  return other < one and other or one
end

-- A call's arguments: a clock's microseconds or '', the grace of a TTL in milliseconds, and in microseconds how
-- long an open reservation is kept and for how long a message may come again; then the messages.
local GRACE_MS, KEEP, HORIZON = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local FIRST_MESSAGE = 5

-- The instant of the call by the clock that keys end by. What is counted may be ahead of it (R11).
local clock
if ARGV[1] == '' then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
else
  clock = ARGV[1] + 0
end

-- The message that is answered now: whose it is, what it says, and whether it was sent under a name that its caller chose,
-- whether that may mean another reservation by its id, and whether it was sent before.
local id, text, named, meant, again
local used_keys, last_key = 0, 0

local function next_key()
  if used_keys < last_key then
    used_keys = used_keys + 1
    return KEYS[used_keys]
  end
end

-- What is in a file of those that few calls need.
local use

-- The TTL in milliseconds of a key that holds something until then: it never ends before that, by the clock, but for
-- what would outlive the server's numbers. A call has mostly two, of its records and of its scopes, again and again.
local one_over, one_ttl, other_over, other_ttl

local function ttl(over)
  if over == one_over then
    return one_ttl
  elseif over == other_over then
    return other_ttl
  end
  other_over, other_ttl = one_over, one_ttl
  one_over, one_ttl = over, format('%d', min(ceil((over - clock) / 1000) + GRACE_MS, MAX_TTL))
  return one_ttl
end
