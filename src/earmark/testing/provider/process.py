"""The stand-in in a process of its own: what it does is told, and what it has seen is asked, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from earmark.testing.provider.acts import Act
from earmark.testing.provider.app import Provider, Seen

_HOST: Final = "127.0.0.1"
_PATIENCE: Final = 30.0  # seconds, on a machine that has much to do


class ProviderProcess:
    """A stand-in that was started.

    Attributes:
        url: where it listens, without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def script(self, *acts: Act) -> None:
        """Say what the requests get that come next, one each."""
        await asyncio.to_thread(self._call, "/script", [act.to_json() for act in acts])

    async def seen(self) -> list[Seen]:
        """What was asked so far."""
        told = await asyncio.to_thread(self._call, "/seen")
        return [Seen(**one) for one in told["seen"]]

    async def streaming(self) -> int:
        """How many streams are under way."""
        told = await asyncio.to_thread(self._call, "/seen")
        return int(told["streaming"])

    def _call(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)  # noqa: S310 - it is http
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_PATIENCE) as response:
            return json.load(response)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer.
        """
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and process.poll() is None:
            with suppress(OSError):
                self._call("/seen")
                return
            time.sleep(0.02)
        msg = "the provider stand-in does not answer: it is served by uvicorn, which has to be installed"
        raise RuntimeError(msg)


@asynccontextmanager
async def running(default: Act | None = None) -> AsyncGenerator[ProviderProcess, None]:
    """Run a stand-in in a process of its own, on a free port of this machine. Needs asyncio, and uvicorn.

    Args:
        default: what a request gets that no script is about.

    Raises:
        RuntimeError: it does not start.
    """
    with socket.socket() as listening:
        listening.bind((_HOST, 0))
        listening.listen(1_024)
        listening.set_inheritable(True)
        port: int = listening.getsockname()[1]
        acts = json.dumps((default or Act()).to_json())
        command = [
            sys.executable,
            "-m",
            "earmark.testing.provider",
            "--fd",
            str(listening.fileno()),
            acts,
        ]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])  # noqa: ASYNC220, S603 - our own
    one = ProviderProcess(f"http://{_HOST}:{port}")
    try:
        await asyncio.to_thread(one.wait, process)
        yield one
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def serve(default: str, port: int, fd: int | None) -> None:
    """Serve a stand-in until somebody ends this process.

    Args:
        default: an act, as JSON.
        port: where it listens, on 127.0.0.1.
        fd: a socket that listens already, in place of a port.
    """
    import uvicorn

    app = Provider(Act.from_json(json.loads(default)))
    uvicorn.run(
        app,
        host=_HOST,
        port=port,
        fd=fd,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
