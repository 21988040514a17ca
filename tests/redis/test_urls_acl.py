"""The rights that docs/redis.md names are enough, and each of them is needed."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Final

import pytest
import redis

from earmark import EarmarkError, Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.clock import Clock
from tests.redis.rights import PASSWORD, commands, rights, server
from tests.servers import HOST, RedisServer

__all__ = ["server"]

pytestmark = pytest.mark.anyio

NAMESPACE: Final = "earmark"

ALICE: Final = Scope(
    "api_key:alice", Limits(rph=3, tpm=1_000, concurrency=1, algorithm="sliding_window")
)
TEAM: Final = Scope("team:research", Limits(tpd=10_000, algorithm="token_bucket"))

# What a server says to a user, and to a script of the user's.
DENIED: Final = "NOPERM|no permissions|can't run this command|can't access"

# What works without, by what is then missing.
OPTIONAL: Final = {"info": "a warning of an eviction policy"}


COMMANDS: Final = commands("gateway")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def url_of_user(server: RedisServer, *more: str, database: int = 0) -> str:
    """The URL of the user, who has the documented rights as they are changed by more words; nothing is left there."""
    with server.client() as client:
        client.flushall()
        client.script_flush()
        client.execute_command("ACL", "SETUSER", "gateway", "reset", *rights("gateway"), *more)
    return f"redis://gateway:open%20sesame@{HOST}:{server.port}/{database}"


async def everything(
    url: str,
    namespace: str = NAMESPACE,
    clock: Clock | None = None,
    client_options: dict[str, str] | None = None,
) -> None:
    """All six messages, all algorithms, slots, names, and ids that are over."""
    backend = RedisBackend.from_url(
        url,
        namespace=namespace,
        clock=clock,
        timeout=5,
        on_outage="local",
        client_options=client_options,
    )
    async with Limiter(backend) as limiter:
        for request_id in (None, "req-1"):
            reservation = await limiter.pre_commit(ALICE, TEAM, tokens=600, request_id=request_id)
            with pytest.raises(RateLimited):
                await limiter.pre_commit(ALICE, TEAM, tokens=500)
            assert await reservation.renew()
            assert await reservation.settle_success(100)
        await limiter.add_tokens_post_stream(TEAM, 5, request_id="req-2")
        health = limiter.health()
        assert (health.available, health.admitted_without_store) == (True, 0)
        await limiter.reset(ALICE, TEAM)
        alice, team = await limiter.peek(ALICE, TEAM)
        assert (alice["requests"].used, team["tokens"].used) == (0, 0)


async def test_the_documented_rights_are_enough(server: RedisServer) -> None:
    """With them everything works, and the server has denied nothing that matters."""
    await everything(url_of_user(server))


async def test_a_database_takes_one_more(server: RedisServer) -> None:
    """`+select`, as documented."""
    with pytest.raises((EarmarkError, redis.RedisError), match="select"):
        await everything(url_of_user(server, database=3))
    await everything(url_of_user(server, "+select", database=3))


async def test_a_name_of_the_client_takes_one_more(server: RedisServer) -> None:
    """`+client|setname`, as documented."""
    named = {"client_name": "gateway-7"}
    with pytest.raises((EarmarkError, redis.RedisError), match="setname"):
        await everything(url_of_user(server), client_options=named)
    await everything(url_of_user(server, "+client|setname"), client_options=named)


async def test_a_password_is_changed_while_two_hold(server: RedisServer) -> None:
    """As the runbook says: the new one is added, and both hold until the old one is taken away."""
    old = url_of_user(server, ">new")
    new = old.replace("open%20sesame", "new")
    await everything(old)
    with server.client() as client:
        client.flushall()
    await everything(new)
    url_of_user(server, ">new", f"<{PASSWORD}")
    await everything(new)
    with pytest.raises((EarmarkError, redis.RedisError), match="invalid username-password"):
        await everything(old)


@pytest.mark.filterwarnings("ignore:.* was dropped while open:ResourceWarning")
@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in OPTIONAL])
async def test_each_of_them_is_needed(
    server: RedisServer, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the server's refusal is raised: it is no outage, in which this process would decide by itself."""
    # What could not be resolved is owed to a server that will never take it.
    monkeypatch.setattr(import_module("earmark.backends.redis.backend"), "CLOSING_SECONDS", 0.1)
    with pytest.raises((EarmarkError, redis.RedisError), match=DENIED):
        await everything(url_of_user(server, f"-{command}"))


@pytest.mark.parametrize("command", OPTIONAL)
async def test_some_may_be_missing(server: RedisServer, command: str) -> None:
    """What is documented as optional is."""
    await everything(url_of_user(server, f"-{command}"))


async def test_a_clock_of_ones_own_needs_fewer(server: RedisServer) -> None:
    """The server's is then neither read nor compared."""
    await everything(url_of_user(server, "-eval", "-time"), clock=time.time)


async def test_keys_of_others_are_out_of_reach(server: RedisServer) -> None:
    """The pattern is that of the namespace: another one is denied."""
    with pytest.raises((EarmarkError, redis.RedisError), match=DENIED):
        await everything(url_of_user(server), namespace="other")
