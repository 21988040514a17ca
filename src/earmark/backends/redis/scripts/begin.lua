-- What all scripts share: the arguments of a call, its instant, whole numbers, and the other files.
-- Lua has doubles alone: whole microseconds and amounts up to 2^53 - 1 are exact in them, and leave as text.
-- Products are forced to be doubles, since a newer Lua would multiply integers, which overflow.

-- A call's arguments: a clock's microseconds or '', the grace of a TTL in milliseconds, and in microseconds how
-- long an open reservation is kept and for how long a message may come again; then the messages.
local GRACE_MS, KEEP, HORIZON = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST_MESSAGE = 5

local MAX_AMOUNT = 9007199254740991
local MAX_TTL = 4503599627370496
local TOLERANCE = 2.0 ^ -48

local call, format, max, min, ceil = redis.call, string.format, math.max, math.min, math.ceil

-- Each further file is a function that is run when it is first used: what a call does not need costs it nothing.
local files, used = {}, {}

local function use(name)
  local file = used[name]
  if not file then
    file = files[name]()
    used[name] = file
  end
  return file
end

local function read_clock()
  if ARGV[1] ~= '' then
    return tonumber(ARGV[1])
  end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The instant of the call by the clock that keys end by. What is counted may be ahead of it (R11).
local clock = read_clock()

-- The TTL in milliseconds of a key that holds something until then: it never ends before that, by the clock, but for
-- what would outlive the server's numbers.
local function ttl(over)
  return format('%d', min(ceil((over - clock) / 1000) + GRACE_MS, MAX_TTL))
end
