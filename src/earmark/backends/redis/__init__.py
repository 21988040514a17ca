"""One limit of many processes, kept in Redis.

Scripts decide (`scripts/*.lua`, one for what takes and one for what frees), each of which mirrors a module of the
memory backend; what they saw comes back as numbers, from which the core computes every answer.
"""

from earmark.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
