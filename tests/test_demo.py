"""The demo of `make demo`: it succeeds for what it should, and fails for what it should.

It runs as a user runs it, as a process of its own. That it can fail is tested by breaking what it shows: a demo whose
table says "ok" whatever happens would be worse than none. What its gateway answers is tested in test_gateway.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from earmark import Limiter, Limits, MemoryBackend, RedisBackend, Scope
from earmark.testing import ManualClock
from tests.servers import RedisServer, free_port

ROOT: Final = Path(__file__).parent.parent
EXAMPLES: Final = ROOT / "examples"

app: Any = import_module("examples.gateway.app")
table: Any = import_module("examples.gateway.table")


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def demo(*arguments: str) -> list[str]:
    """Run the demo, which has to succeed without a word on standard error; returns what it prints."""
    done = run(str(EXAMPLES / "gateway_demo.py"), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def rows(lines: list[str]) -> list[tuple[str, ...]]:
    """The cells of the table's rows, the numbers left out: step, answer, expected, seen, verdict."""
    found = [line for line in lines if line[:2].strip().isdigit()]
    assert [int(line[:2]) for line in found] == list(range(1, len(found) + 1))
    cuts = [4, 43, 63, 89, 115, None]
    return [tuple(line[start:end].strip() for start, end in pairwise(cuts)) for line in found]


def test_b31_the_demo_shows_a_gateway_at_work() -> None:
    """Settled before `[DONE]`, then refused; a slot held by a stream; a client that leaves; what costs nothing."""
    used = "requests 1, tokens 1,500"
    assert rows(demo()) == [
        (*row, row[-1], "ok")
        for row in (
            ("asks; half of the stream is here", "200", "requests 1, tokens 200"),
            ("[DONE] is here, body still open", "the same bytes", used),
            ("asks again", "429, Retry-After 40", used),
            ("asks again, 39 s later", "429, Retry-After 1", used),
            ("asks again, 1 s later", "200", used),
            ("asks; half of the stream is here", "200", "tokens 200, slots 1"),
            ("asks meanwhile", "429, no Retry-After", "tokens 200, slots 1"),
            ("disconnects in mid-stream", "abandoned", "tokens 200, slots 0"),
            ("asks again", "200", "tokens 1,700, slots 0"),
            ("asks for an answer in one piece", "200", "requests 1, micro-USD 180"),
            (
                "asks again; its estimate is too much",
                "429, Retry-After 60",
                "requests 1, micro-USD 180",
            ),
            ("asks again, after midnight", "200", "requests 1, micro-USD 180"),
            ("asks for a model that nobody has", "404", "requests 1, tokens 0"),
            ("asks for an answer in one piece", "200", "requests 2, tokens 30"),
            ("asks while the provider is down", "502", "requests 2, tokens 30"),
        )
    ]


def test_the_demo_keeps_its_limits_on_redis(shared_redis: RedisServer) -> None:
    """The same rows, whether limits are in memory or on a server; afterwards nothing is left there."""
    lines = demo("--redis", shared_redis.url)
    assert "limits    kept on a Redis server" in lines
    assert rows(lines) == rows(demo())
    with shared_redis.client() as client:
        assert list(client.scan_iter("demo-*")) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"redis://127.0.0.1:{free_port()}", "the store cannot be reached"),
        ("redis://nobody:wrong@{address}", "invalid username-password pair"),
        ("http://{address}", "redis://, rediss://, unix://"),
    ],
    ids=["nobody there", "a wrong password", "another scheme"],
)
def test_a_server_that_cannot_be_used_is_an_error(
    url: str, message: str, shared_redis: RedisServer
) -> None:
    """The demo says what is wrong with the server, and exits as argparse does."""
    address = shared_redis.url.removeprefix("redis://")
    done = run(str(EXAMPLES / "gateway_demo.py"), "--redis", url.format(address=address))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_gateway_answers_503_where_nobody_can_decide(anyio_backend: str) -> None:
    """A store that cannot be reached, and `on_outage="closed"`: no request goes on."""
    backend = RedisBackend.from_url(f"redis://127.0.0.1:{free_port()}", on_outage="closed")
    scopes = {"sk-alice": Scope("api_key:alice", Limits(rpm=10))}
    nobody = httpx.MockTransport(lambda _: pytest.fail("nothing may be sent"))
    async with (
        Limiter(backend) as limiter,
        httpx.AsyncClient(transport=nobody, base_url="http://provider") as upstream,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app.Gateway(limiter, scopes, upstream).app()),
            base_url="http://gateway",
        ) as alice,
    ):
        answer = await alice.post(
            app.COMPLETIONS,
            json={"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
            headers={"authorization": "Bearer sk-alice"},
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")


def sse(*events: dict[str, Any]) -> str:
    """Server-sent events, named as their data names them."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        if "type" in event
        else f"data: {json.dumps(event)}\n\n"
        for event in events
    )


def lines(*payloads: dict[str, Any]) -> str:
    """One payload a line."""
    return "".join(f"{json.dumps(payload)}\n" for payload in payloads)


def gemini(text: str, count: int, **more: Any) -> dict[str, Any]:
    """One snapshot of Gemini's."""
    counts = {"promptTokenCount": 5, "candidatesTokenCount": count, "totalTokenCount": 5 + count}
    candidate = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}, **more}
    return {"candidates": [candidate], "usageMetadata": counts}


START: Final = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
BLOCK: Final = {"type": "content_block_delta", "index": 0}

# A recording by its file's name: the body, the tokens that the whole of it leaves debited of a hold of 200, and those
# that half of it does.
RECORDINGS: Final = {
    "messages.sse": (
        sse(
            {
                "type": "message_start",
                "message": {**START, "usage": {"input_tokens": 640, "output_tokens": 1}},
            },
            {**BLOCK, "delta": {"type": "text_delta", "text": "Good morning to you"}},
            {**BLOCK, "delta": {"type": "text_delta", "text": " and to everyone here"}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 12},
            },
            {"type": "message_stop"},
        ),
        652,
        641,
    ),
    "without-usage.sse": (
        sse(
            {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}]},
            {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": "stop"}]},
        )
        + "data: [DONE]\n\n",
        200,
        200,
    ),
    "chat.ndjson": (
        lines(
            {"model": "m", "message": {"role": "assistant", "content": "Good"}, "done": False},
            {"model": "m", "message": {"role": "assistant", "content": " day"}, "done": False},
            {
                "model": "m",
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": "stop",
                "prompt_eval_count": 30,
                "eval_count": 7,
            },
        ),
        37,
        200,
    ),
    "array.json": (
        json.dumps([gemini("Good", 2), gemini(" day", 3, finishReason="STOP")], indent=1),
        8,
        200,
    ),
    "payloads.jsonl": (
        lines(
            {"messageStart": {"role": "assistant"}},
            {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Good day"}}},
            {"messageStop": {"stopReason": "end_turn"}},
            {"metadata": {"usage": {"inputTokens": 800, "outputTokens": 9, "totalTokens": 809}}},
        ),
        809,
        200,
    ),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_b65_the_demo_serves_a_recorded_body(name: str, tmp_path: Path) -> None:
    """It passes through whole, and leaves debited what it reports, or the larger of that and the hold."""
    body, owed, left = RECORDINGS[name]
    recording = tmp_path / name
    recording.write_text(body, encoding="utf-8")
    shown = rows(demo("--recording", str(recording)))
    assert [row[-1] for row in shown] == ["ok"] * 15
    assert shown[1][1:4] == ("the same bytes", *[f"requests 1, tokens {owed}"] * 2)
    assert shown[2][1] == "429, Retry-After 40"
    assert shown[7][1:4] == ("abandoned", *[f"tokens {left}, slots 0"] * 2)
    assert shown[8][1:4] == ("200", *[f"tokens {left + owed:,}, slots 0"] * 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.sse", None, "No such file"),
        ("empty.sse", "", "not empty"),
        ("movie.mp4", "data: x", ".sse, .ndjson, .jsonl, .json"),
    ],
)
def test_a_recording_that_cannot_be_served_is_an_error(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    """The demo says what is wrong with the file, and exits as argparse does."""
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = run(str(EXAMPLES / "gateway_demo.py"), "--recording", str(tmp_path / name))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        pytest.param(
            "gateway.app.ask_for_usage = lambda body: body",
            {2, 3, 4, 5, 9},
            id="a gateway that does not ask for the usage",
        ),
        pytest.param(
            "gateway.app.NEVER_SENT = ()",
            {15},
            id="a gateway that does not cancel what it could not send",
        ),
        pytest.param(
            "gateway.app.UNBILLED = frozenset()",
            {13, 14, 15},
            id="a gateway that keeps the hold of what was refused unbilled",
        ),
        pytest.param(
            "gateway.app.ChatRequest.estimate = lambda request: earmark.Usage(0, 0)",
            {1, 6, 7, 8, 9, 11},
            id="a gateway that holds nothing",
        ),
    ],
)
def test_the_demo_fails_where_the_gateway_is_wrong(fault: str, failed: set[int]) -> None:
    """Every row that does not hold says so, and the exit code is 1."""
    code = (
        f"import sys, earmark, gateway.app, gateway_demo; {fault}; sys.exit(gateway_demo.main([]))"
    )
    done = run("-c", code, cwd=EXAMPLES)
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = [row[-1] for row in rows(done.stdout.splitlines())]
    assert {at for at, verdict in enumerate(verdicts, 1) if verdict != "ok"} == failed
    assert done.stdout.splitlines()[-1].startswith("FAILED: of 15 steps")


def test_the_demo_gives_up_where_nothing_happens() -> None:
    """A step that never ends is a failure, not a demo that hangs."""
    code = "import sys, gateway_demo; gateway_demo.PATIENCE = 0.0; sys.exit(gateway_demo.main([]))"
    done = run("-c", code, cwd=EXAMPLES)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("FAILED: the next step did not end")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("came", "due", "expected", "verdict"),
    [
        ("200", "200", {"requests": 1, "tokens": 120, "slots": 0}, "ok"),
        ("200", "429", {"requests": 1, "tokens": 120, "slots": 0}, "FAILED"),
        ("200", "200", {"requests": 1, "tokens": 300, "slots": 0}, "FAILED"),
        ("200", "200", {"requests": 1, "tokens": 120, "slots": 1}, "FAILED"),
        ("200", "200", {"requests": 1, "tokens": 120}, "FAILED"),
        ("200", "200", {}, "FAILED"),
    ],
)
async def test_a_row_is_judged_by_what_peek_says(
    came: str,
    due: str,
    expected: dict[str, int],
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One wrong expectation, or one that is missing, fails its row and the whole table."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    scope = Scope("key", Limits(rpm=10, tpm=1_000, concurrency=1))
    async with await limiter.pre_commit(scope, tokens=300) as reservation:
        await reservation.settle_success(120)
    judged = table.Table(limiter)
    judged.about(scope)
    await judged.row("a step", came, due, **expected)
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == verdict
    assert judged.verdict() == (0 if verdict == "ok" else 1)


def test_a_table_without_rows_is_no_success() -> None:
    """A demo that does nothing has shown nothing."""
    assert table.Table(Limiter()).verdict() == 1


def test_the_first_snippet_of_the_readme_is_the_quickstart() -> None:
    """What README shows first is examples/quickstart.py, word by word, without its head."""
    _, _, after = (ROOT / "README.md").read_text("utf-8").partition("```python\n")
    _, _, quickstart = (EXAMPLES / "quickstart.py").read_text("utf-8").partition('"""\n\n')
    assert after.partition("```")[0] == quickstart
