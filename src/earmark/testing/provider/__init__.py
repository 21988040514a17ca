"""A stand-in for a provider: it answers as OpenAI, Anthropic and Gemini do, streamed or not, and fails as scripted.

    from earmark.testing.provider import Act, Provider, running

    provider = Provider()                                # an ASGI application, without any dependency
    provider.script(Act(status=429), Act(cut=2))         # what the next requests get; then all is well again

    async with running() as process:                     # or: in a process of its own, on a free port of this machine
        await process.script(Act(status=503))
        ...                                              # clients talk to process.url
        assert len(await process.seen()) == 2

It is a plain ASGI application; `running` and `python -m earmark.testing.provider` serve it by uvicorn.
"""

from __future__ import annotations

from earmark.testing.provider.acts import Act
from earmark.testing.provider.app import Provider, Seen
from earmark.testing.provider.process import ProviderProcess, running
from earmark.testing.provider.recorded import Pause, Recorded

__all__ = ["Act", "Pause", "Provider", "ProviderProcess", "Recorded", "Seen", "running"]
