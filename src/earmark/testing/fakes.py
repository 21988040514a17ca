"""A Redis of the process: the real backend and its real scripts, on fakeredis in place of a server."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earmark.backends.redis import RedisBackend
    from earmark.clock import Clock

# Long: what is slow here is the machine that tests, not a server. An outage is for FaultyBackend to play.
_TIMEOUT = 30.0


def fake_redis_backend(
    *, clock: Clock | None = None, lease: float = 60.0, server: Any = None, **options: Any
) -> RedisBackend:
    """Return a `RedisBackend` on a fake server in this process; it needs `fakeredis[lua]`, and asyncio.

    Args:
        clock: by which the scripts decide, such as a `ManualClock`; by default that of the fake server.
        lease: seconds for which a slot is held without a renewal.
        server: a `fakeredis.FakeServer` that several backends share, as processes do; by default one of its own.
        options: any others of `RedisBackend`; without them nobody decides without the server.

    Raises:
        ImportError: fakeredis is not installed, or cannot run scripts.
    """
    for needed in ("fakeredis", "lupa"):  # the second is what `fakeredis[lua]` runs scripts with
        if find_spec(needed) is None:
            msg = f"fake_redis_backend runs Redis' scripts and needs {needed}: pip install 'fakeredis[lua]'"
            raise ImportError(msg, name=needed)
    import fakeredis

    from earmark.backends.redis import RedisBackend

    client = fakeredis.FakeAsyncRedis(server=server or fakeredis.FakeServer())
    settings: dict[str, Any] = {"timeout": _TIMEOUT, "on_outage": "closed", **options}
    return RedisBackend(client, clock=clock, lease=lease, **settings)
