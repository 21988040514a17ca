"""Another process with a limiter on the same server, which does what it is told, line by line."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent.parent

PROGRAM: Final = """
import asyncio, json, sys
from earmark import BackendUnavailable, Limits, RateLimited, RequestIdConflict, Scope
from tests.sites import limiter_at

async def main():
    where, namespace, lease, now = sys.argv[1:]
    clock = (lambda: float(now)) if now else None
    options = {"namespace": namespace, "clock": clock, "lease": float(lease), "timeout": 20}
    async with limiter_at(where, **options) as limiter:
        await serve(limiter)

async def serve(limiter):
    handles = {}

    async def take(key, limits, tokens, request_id=None):
        handle = await limiter.pre_commit(Scope(key, Limits(**limits)), tokens=tokens, request_id=request_id)
        handles[handle.request_id] = handle
        return handle.request_id

    async def work(keys, limits, tokens, used, count):
        scopes = [Scope(key, Limits(**limits)) for key in keys]
        async def request():
            handle = await limiter.pre_commit(*scopes, tokens=tokens)
            return await handle.settle_success(used)
        return await asyncio.gather(*(request() for _ in range(count)))

    async def enter(request_id):
        await handles[request_id].__aenter__()

    async def settle(request_id, tokens):
        return await handles[request_id].settle_success(tokens)

    async def cancel(request_id):
        return await handles[request_id].cancel()

    async def state(request_id):
        return handles[request_id].state

    async def renew(request_id):
        return await handles[request_id].renew()

    calls = {call.__name__: call for call in (take, work, enter, settle, cancel, state, renew)}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        try:
            answer = await calls[name](*arguments)
        except (RateLimited, RequestIdConflict, BackendUnavailable) as error:
            answer = type(error).__name__
        print(json.dumps(answer), flush=True)

asyncio.run(main())
"""


class OtherProcess:
    """See above."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, *call: Any) -> Any:
        """Have it do something, and return what it says."""
        self.tell(*call)
        return await self.hear()

    def tell(self, *call: Any) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call).encode() + b"\n")

    async def hear(self) -> Any:
        """What it says to that."""
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            return json.loads(await self._process.stdout.readline())

    def freeze(self) -> None:
        """Stop it where it stands."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        self._process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def other_process(
    where: str, namespace: str, *, lease: float = 60, now: float | None = None
) -> AsyncIterator[OtherProcess]:
    """Start one, and end it.

    Args:
        where: the URL of a server, or what `tests.sites` calls another place.
        namespace: of the keys.
        lease: seconds.
        now: its clock stands still.
    """
    where = where if " " in where else f"server {where}"
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            PROGRAM,
            where,
            namespace,
            str(lease),
            "" if now is None else str(now),
        ),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield OtherProcess(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await asyncio.sleep(0)  # its pipes are closed in a turn of the loop
