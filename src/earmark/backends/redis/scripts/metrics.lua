-- What a request asks that does not name the metric; what is not here is neither judged nor counted then.
-- The usual metrics go by one letter each, which earmark.backends.redis.messages gives them. Twin: Limit.unasked.

return {unasked = {r = 1, t = 0, i = 0, o = 0, u = 0, n = 0}}
