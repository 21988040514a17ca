"""The contract of all backends on servers of every version that can be had, and what the documents say of them.

Their scripts are compared in test_scripts_servers.py, clusters of them in test_cluster_moves.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import RedisBackend
from earmark.testing import CONTRACT, check_backend
from tests.scale import PROFILE
from tests.servers import redis_server
from tests.versions import PACKAGES, program_of

ROOT: Final = Path(__file__).parent.parent.parent

# The machine's own server plays all of them, one by one, in test_contract.py.
CASES: Final = CONTRACT if PROFILE == "long" else CONTRACT[::8]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("version", PACKAGES)
async def test_every_version_keeps_the_contract(version: str) -> None:
    """R1–R19: every eighth case, in a long run all; and the server is what it is called."""
    numbers = itertools.count()
    made: list[RedisBackend] = []

    with redis_server(program=program_of(version)) as server:

        def make(**options: Any) -> RedisBackend:
            backend = RedisBackend.from_url(
                server.url, namespace=f"n{next(numbers)}", timeout=30, **options
            )
            made.append(backend)
            return backend

        with server.client() as client:
            told: Any = client.info("server")
        name = "Valkey" if "valkey_version" in told else "Redis"
        number = told.get("valkey_version", told["redis_version"])
        assert f"{name} {number}".startswith(f"{version}.")
        await check_backend(make, CASES)
        assert len(made) >= len(CASES)
        assert not any(backend.health().admitted_without_store for backend in made)
        for backend in made:
            await backend.aclose()


def test_the_documents_name_the_versions_that_were_run() -> None:
    """Each that the tests bring along."""
    text = (ROOT / "docs" / "redis.md").read_text("utf-8")
    assert [name for name in PACKAGES if f"| {name}" not in text] == []
