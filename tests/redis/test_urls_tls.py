"""TLS: `rediss://`, with a certificate that is made for the occasion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from earmark import BackendUnavailable, EarmarkError, Limiter, Limits, RedisBackend, Scope
from tests.servers import HOST
from tests.tls import Secured, knows_tls, secured_server

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("api_key:alice", Limits(rph=2, tph=1_000, concurrency=1))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with TLS."""
    if not knows_tls():
        pytest.skip("this redis-server was built without TLS")
    with secured_server(tmp_path_factory.mktemp("tls")) as started:
        yield started


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_a_rediss_url(secured: Secured, namespace: str, host: str) -> None:
    """The server's certificate is checked, its name included, and the connection is encrypted."""
    url = secured.url.replace(HOST, host)
    async with Limiter(RedisBackend.from_url(url, namespace=namespace, timeout=5)) as limiter:
        async with await limiter.pre_commit(ALICE, tokens=600) as reservation:
            assert await reservation.settle_success(100)
        (status,) = await limiter.peek(ALICE)
        assert (status["tokens"].used, status["concurrency"].used) == (100, 0)
    with secured.server.client(decode_responses=True) as client:
        assert set(client.scan_iter(f"{namespace}:*")) == {f"{namespace}:c:api_key:alice"}


async def test_a_certificate_of_nobodys(secured: Secured, namespace: str) -> None:
    """A server whose certificate nobody vouches for is not talked to: a mistake, and no outage that memory bridges."""
    url = f"rediss://{HOST}:{secured.port}"
    backend = RedisBackend.from_url(url, namespace=namespace, timeout=5, on_outage="local")
    async with Limiter(backend) as limiter:
        with pytest.raises(EarmarkError, match="certificate verify failed"):
            await limiter.pre_commit(ALICE)


async def test_the_options_of_a_certificate(secured: Secured, namespace: str) -> None:
    """The settings of redis-py's client hold: here that whoever answers is believed."""
    backend = RedisBackend.from_url(
        f"rediss://{HOST}:{secured.port}",
        namespace=namespace,
        timeout=5,
        client_options={"ssl_cert_reqs": "none", "ssl_check_hostname": False},
    )
    async with Limiter(backend) as limiter:
        await limiter.peek(ALICE)
        assert limiter.health().available


@pytest.mark.parametrize("secure", [False, True])
async def test_a_scheme_that_is_not_the_ports_is_an_outage(
    secured: Secured, namespace: str, *, secure: bool
) -> None:
    """Nobody answers in either language: as when nobody is there. A look says so; a request is decided without."""
    url = f"rediss://{HOST}:{secured.server.port}" if secure else f"redis://{HOST}:{secured.port}"
    async with Limiter(RedisBackend.from_url(url, namespace=namespace)) as limiter:
        with pytest.raises(BackendUnavailable):
            await limiter.peek(ALICE)
        async with await limiter.pre_commit(ALICE) as reservation:
            assert reservation.degraded
        assert not limiter.health().available


PROGRAM: Final = """
import asyncio, sys
from earmark import Limiter, Limits, RedisBackend, Scope

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # how busy the machine is plays no part
    async with Limiter(RedisBackend.from_url(sys.argv[1], namespace=sys.argv[2], timeout=5)) as limiter:
        await limiter.peek(Scope("api_key:alice", Limits(rpd=10)))

for _ in range(5):
    asyncio.run(main())
"""


def test_a_program_that_closes_is_not_told_off(secured: Secured, namespace: str) -> None:
    """R19: the loop may end once all is closed: the server has said by then that the connection is."""
    url = secured.url
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, url, namespace],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
