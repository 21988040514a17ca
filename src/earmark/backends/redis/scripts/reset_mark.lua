-- What a reset leaves under a limit's name with a '!' before it: {name, generation, end}. Holds from before it have
-- nothing to give back, which they find by the generation that they saw: no two resets of a limit have the same. The
-- mark lives for as long as such a hold would give anything back without it. Twin: the forgiven of MemoryStore.

return {
  ends = function(kind, mark)
    return mark[3]
  end,

  write = function(kind, mark)
    return format('[%s,%d,%d]', kind.json, mark[2], mark[3])
  end,
}
