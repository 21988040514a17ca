"""One limit of many processes, kept in Redis.

Scripts decide (`scripts/*.lua`, put together to one for each verb), each of which mirrors a module of the
memory backend; what they saw comes back as numbers, from which the core computes every answer.
"""

from earmark.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
