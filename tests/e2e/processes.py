"""The gateway of examples/ in processes of its own: uvicorn in front of a provider stand-in, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import httpx2

from earmark.testing.provider import ProviderProcess

EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
HOST: Final = "127.0.0.1"
PATIENCE: Final = 60.0


@dataclass
class Gateway:
    """One or more gateway processes with the same settings.

    Attributes:
        urls: of each.
    """

    urls: Sequence[str]

    @property
    def url(self) -> str:
        return self.urls[0]

    @asynccontextmanager
    async def openai(
        self, key: str, *, worker: int = 0, max_retries: int = 0
    ) -> AsyncIterator[Any]:
        """OpenAI's SDK, which does not retry unless it is told to."""
        from openai import AsyncOpenAI

        http = httpx2.AsyncClient(trust_env=False)
        async with AsyncOpenAI(
            base_url=f"{self.urls[worker]}/v1",
            api_key=key,
            http_client=http,
            max_retries=max_retries,
        ) as client:
            yield client

    @asynccontextmanager
    async def anthropic(self, key: str, *, max_retries: int = 0) -> AsyncIterator[Any]:
        """Anthropic's SDK, which does not retry either."""
        from anthropic import AsyncAnthropic

        http = httpx2.AsyncClient(trust_env=False)
        async with AsyncAnthropic(
            base_url=self.url, api_key=key, http_client=http, max_retries=max_retries
        ) as client:
            yield client


async def _answers(url: str, process: subprocess.Popen[bytes]) -> None:
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(PATIENCE):
        while True:
            assert process.poll() is None, "the gateway has ended"
            with suppress(httpx.TransportError):
                await client.get(f"{url}/health")
                return
            await asyncio.sleep(0)


@asynccontextmanager
async def gateway(
    providers: Sequence[ProviderProcess | str],
    policies: dict[str, Any],
    folder: Path,
    *,
    redis: str | None = None,
    workers: int = 1,
    application: str = "llm_gateway:app",
) -> AsyncIterator[Gateway]:
    """Run the gateway of examples/ until the block is left."""
    file = folder / "policies.json"
    file.write_text(json.dumps(policies), "utf-8")
    urls = [one if isinstance(one, str) else one.url for one in providers]
    listed = ",".join(f"p{number}={url}" for number, url in enumerate(urls))
    tenants = [tenant["key"] for tenant in policies["tenants"]]
    environment = {
        **os.environ,
        "GATEWAY_POLICIES": str(file),
        "GATEWAY_KEYS": ",".join(f"sk-{tenant}={tenant}" for tenant in tenants),
        "GATEWAY_PROVIDERS": listed,
        "PYTHONPATH": f"{EXAMPLES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        **({"GATEWAY_REDIS": redis} if redis else {}),
    }
    processes: list[subprocess.Popen[bytes]] = []
    found: list[str] = []
    try:
        for _ in range(workers):
            with socket.socket() as listening:
                listening.bind((HOST, 0))
                listening.listen(2_048)
                fd = listening.fileno()
                command = [
                    *(sys.executable, "-W", "error", "-m", "uvicorn", application, "--fd", str(fd)),
                    *("--log-level", "warning", "--timeout-graceful-shutdown", "5"),
                ]
                processes.append(subprocess.Popen(command, env=environment, pass_fds=[fd]))  # noqa: ASYNC220
                found.append(f"http://{HOST}:{listening.getsockname()[1]}")
        for url, process in zip(found, processes, strict=True):
            await _answers(url, process)
        yield Gateway(found)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            await asyncio.to_thread(process.wait)
