"""What the library writes to its log: fields for programs, and nothing that is somebody's own."""

from __future__ import annotations

import ast
import gc
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from earmark import (
    Limiter,
    Limits,
    MemoryBackend,
    RedisBackend,
    Scope,
    observe_stream,
    usage_from_response,
)
from earmark.ledger import Budget, Ledger, Spend
from earmark.logs import about
from earmark.testing import FaultyBackend, ManualClock

ROOT: Final = Path(__file__).parent.parent
LIBRARY: Final = ROOT / "src" / "earmark"
LEVELS: Final = {"info", "warning", "error", "exception", "critical", "log"}
QUIET: Final = {"info", "warning"}

FIELDS: Final = {"field", "kind", "on_outage", "owed", "policy", "reason", "seconds"}
FIELDS_OF_ERRORS: Final = FIELDS | {"request_id"}

SECRET: Final = "s3cret"  # noqa: S105 - it stands for whatever is somebody's own


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every record that the library writes, but for those of debugging, with its place."""
    for file in sorted(LIBRARY.rglob("*.py")):
        if file.is_relative_to(LIBRARY / "testing"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and (node.func.value.id, node.func.attr) in {("logger", level) for level in LEVELS}
            ):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def fields_of(call: ast.Call) -> tuple[str, set[str]]:
    """The event of a record, and its other fields."""
    extra = next((one.value for one in call.keywords if one.arg == "extra"), None)
    if not isinstance(extra, ast.Call) or ast.unparse(extra.func) != "about":
        return "", set()
    (event,) = map(ast.literal_eval, extra.args)
    return event, {field.arg or "**" for field in extra.keywords}


def test_every_record_has_fields() -> None:
    """Whatever is written at `info` and above says in a word what has happened, and has no field but these."""
    found = list(calls())
    assert len(found) > 30
    wrong = []
    for place, call in found:
        event, fields = fields_of(call)
        assert isinstance(call.func, ast.Attribute)
        allowed = FIELDS if call.func.attr in {*QUIET, "log"} else FIELDS_OF_ERRORS
        if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event) or not fields <= allowed:
            wrong.append(f"{place}: {event!r} {fields - allowed}")
    assert not wrong


def test_no_message_names_a_request() -> None:
    """No argument of a message is a name, a key, a scope, an amount or a value: what is told of these is their type."""
    personal = {"name", "key", "keys", "request_id", "scope", "scopes", "asks", "amount", "hold"}
    wrong = []
    for place, call in calls():
        for argument in call.args[1:]:
            names = {node.attr for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
            names |= {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
            if names & personal:
                wrong.append(f"{place}: {ast.unparse(argument)}")
    known = {"src/earmark/streams/counts.py"}  # `name` is a field of a dialect's
    assert {one.split(":")[0] for one in wrong} <= known, wrong


def test_the_docs_list_every_event() -> None:
    """docs/observability.md has each of these words, and no other."""
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    section = text.partition("## The log")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))
    assert listed == {fields_of(call)[0] for _, call in calls()}


def test_fields_cannot_hide_what_a_record_has() -> None:
    """Each has the library's name in front, so that none is one of the standard library's."""
    fields = about("store_back", reason="none")
    assert fields == {"earmark_event": "store_back", "earmark_reason": "none"}
    logging.getLogger("earmark.test").makeRecord("n", 20, "f", 1, "m", (), None, extra=fields)


class Records(logging.Handler):
    """Everything that is written at `info` and above, as a formatter for programs would."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def events(self) -> set[str]:
        """The words of all of them."""
        return {getattr(record, "earmark_event", "?") for record in self.records}

    def text(self, *, up_to: int = logging.CRITICAL) -> str:
        """All that is told by records up to a level, tracebacks included."""
        form = logging.Formatter()
        return "\n".join(
            f"{form.format(record)} {json.dumps(vars(record), default=str)}"
            for record in self.records
            if record.levelno <= up_to
        )


@pytest.fixture
def records() -> Iterator[Records]:
    """Those of the library, during a test."""
    handler, logger = Records(), logging.getLogger("earmark")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


SCOPE: Final = Scope(f"user:{SECRET}", Limits(rpd=9, tpd=9_000, concurrency=2))


@pytest.mark.anyio
async def test_streams_tell_nothing_of_what_is_in_them(records: Records) -> None:
    """Bodies that cannot be read, items that raise, estimators that return what was said: types, and no text."""

    class Item:
        """An SDK's object that shows its content when it fails."""

        def model_dump(self, **_: Any) -> dict[str, Any]:
            raise ValueError(SECRET)

    def estimate(_: object) -> Any:
        return SECRET

    async def body(*items: object) -> AsyncIterator[object]:
        for item in items:
            yield item

    usage_from_response(f'{{"text": "{SECRET}", '.encode())
    limiter = Limiter()
    for items in (
        [f'data: {{"text": "{SECRET}" "usage"\n\n'.encode()],
        [Item()],
        [b"\x1f\x8b" + SECRET.encode() * 9],
        [{"choices": [], "usage": {"prompt_tokens": SECRET, "completion_tokens": 1}}],
    ):
        made = await limiter.pre_commit(SCOPE, tokens=5)
        async for _ in made.stream(body(*items), estimate=estimate):
            pass
    async for _ in observe_stream(body(Item()), on_complete=lambda _: None):
        pass
    assert records.events() >= {
        "response_unreadable",
        "stream_unreadable",
        "stream_compressed",
        "count_ignored",
        "estimator_failed",
    }
    assert SECRET not in records.text()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_outage_tells_nothing_of_requests(records: Records, anyio_backend: str) -> None:
    """What is unreachable is told, with why, and not for whom; nor is what it is owed, nor a password."""
    url = f"redis://user:{SECRET}@127.0.0.1:1"
    async with Limiter(RedisBackend.from_url(url, on_outage="open")) as limiter:
        made = await limiter.pre_commit(SCOPE, tokens=5, request_id=SECRET)
        await limiter.add_tokens_post_stream(SCOPE, 5, request_id=SECRET)
        await made.settle_success(4)
    assert records.events() >= {"store_unreachable", "store_owed"}
    (unreachable,) = [
        one for one in records.records if vars(one)["earmark_event"] == "store_unreachable"
    ]
    assert vars(unreachable)["earmark_on_outage"] == "open"
    assert "127.0.0.1:1" in vars(unreachable)["earmark_reason"]
    assert SECRET not in records.text()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_money_that_nobody_resolved_is_told_without_its_request(
    records: Records, tmp_path: Path, anyio_backend: str
) -> None:
    """The row in the ledger is marked unsettled: there is who looks for it finds it."""
    now = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    clock = ManualClock(now)
    ledger = Ledger(f"sqlite:///{tmp_path / 'spend.db'}", clock=clock, expiry=60)
    await ledger.create()
    async with Limiter(MemoryBackend(clock=clock), ledger=ledger) as limiter:
        budget = Budget(f"user:{SECRET}", Decimal(9), "daily")
        spend = Spend((budget,), estimate=Decimal(1))
        made = await limiter.pre_commit(request_id=SECRET, spend=spend)
        clock.advance(3_600)
        assert await ledger.spent(budget) == 1
        assert await made.cancel() in {True, False}
    assert "posted_unresolved" in records.events()
    assert SECRET not in records.text()


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_an_error_names_its_request_in_a_field_alone(records: Records) -> None:
    """R15: what somebody has to look for has the id that they look for, and not in the message."""
    backend = FaultyBackend(MemoryBackend())
    limiter = Limiter(backend)
    made = await limiter.pre_commit(SCOPE, tokens=5, request_id=SECRET)
    backend.go_down()
    del made
    gc.collect()
    await limiter.aclose()
    backend.recover()
    await limiter.aclose()
    assert records.events() == {"resolve_failed"}
    (failed,) = [one for one in records.records if vars(one)["earmark_event"] == "resolve_failed"]
    assert vars(failed)["earmark_request_id"] == SECRET
    assert SECRET not in failed.getMessage()
    assert SECRET not in records.text(up_to=logging.WARNING)


@pytest.mark.anyio
async def test_an_observer_that_fails_is_named_and_not_shown(records: Records) -> None:
    """What an application has put into its observers is its own: an address, the key of a webhook."""

    class Hook:
        def __init__(self) -> None:
            self.secret = "xoxb-1"  # noqa: S105 - it opens nothing

        def __repr__(self) -> str:
            return f"Hook({self.secret})"

        def __call__(self, *arguments: Any) -> None:
            raise LookupError

    hook = Hook()
    limiter = Limiter(observers=[hook, partial(hook, "alice@example.org"), hook.__call__])
    await (await limiter.pre_commit(Scope("user:alice", Limits(rpm=60)))).cancel()
    told = [record.getMessage() for record in records.records]
    assert len(told) == 6
    assert not [text for text in told if "xoxb" in text or "alice" in text]
    assert "Hook failed on admitted" in told[0]
    assert "partial failed on admitted" in told[1]
    assert "Hook.__call__ failed on admitted" in told[2]
