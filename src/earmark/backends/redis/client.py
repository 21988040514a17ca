"""The clients of redis-py whose settings are used."""

from __future__ import annotations

from redis.asyncio import Redis, RedisCluster

Client = Redis | RedisCluster
"""A client of one server, by whatever way it is found, or of a cluster."""
