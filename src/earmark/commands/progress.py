"""A progress bar, for whoever sits before a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, TextIO

_WIDTH: Final = 30


class Bar:
    """Is told how much is done, and shows it; what is no terminal sees nothing of it.

    Args:
        what: is being done.
        out: where it is shown.
    """

    def __init__(self, what: str, out: TextIO) -> None:
        self._what = what
        self._out = out
        self._shows = out.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show("")

    def __call__(self, done: int, total: int) -> None:
        """So much is done."""
        if self._shows:
            bar = "#" * (_WIDTH * done // total)
            self._show(f"{self._what} [{bar:<{_WIDTH}}] {100 * done // total:3} %")

    def _show(self, text: str) -> None:
        """Show this in place of what is there."""
        if text != self._shown:
            self._out.write(f"\r{text:<{len(self._shown)}}" + ("" if text else "\r"))
            self._out.flush()
            self._shown = text
