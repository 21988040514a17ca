"""Callers who ask by one name at the same moment, and are cancelled: each at a turn of the loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import anyio
import anyio.lowlevel

from earmark import Reservation

Kind = Literal["task", "scope"]

KINDS: Final[tuple[Kind, ...]] = ("task", "scope")

Goes = tuple[Kind, int]
"""How a caller is cancelled, and after how many turns of the loop."""

Ask = Callable[[], Awaitable[Reservation]]


class _Rival:
    def __init__(self, ask: Ask, kind: Kind) -> None:
        self._ask = ask
        self._kind = kind
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None
        self.got: Reservation | None = None

    async def run(self) -> None:
        if self._kind == "scope":
            with self._scope:
                self.got = await self._ask()
        else:
            self._task = asyncio.ensure_future(self._take())
            await asyncio.wait([self._task])

    async def _take(self) -> None:
        self.got = await self._ask()

    def go(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._scope.cancel()


async def rivals(asks: Sequence[Ask], goes: Sequence[Goes]) -> list[Reservation]:
    """What those were given who had been given anything when they were cancelled; all are gone when it returns."""
    all_of_them = [_Rival(ask, kind) for ask, (kind, _) in zip(asks, goes, strict=True)]
    async with anyio.create_task_group() as group:
        for rival in all_of_them:
            group.start_soon(rival.run)
        await anyio.lowlevel.checkpoint()
        for turn in range(1 + max(turns for _, turns in goes)):
            for rival, (_, turns) in zip(all_of_them, goes, strict=True):
                if turns == turn:
                    rival.go()
            await anyio.lowlevel.checkpoint()
    return [rival.got for rival in all_of_them if rival.got is not None]
