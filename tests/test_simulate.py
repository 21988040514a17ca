"""`python -m earmark simulate`: a trace through the real limiter, what is told of it, and every mistake in a trace."""

from __future__ import annotations

import asyncio
import heapq
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from earmark import Limiter, MemoryBackend, RateLimited, Reservation, Usage
from earmark.commands import main
from earmark.commands.progress import Bar
from earmark.commands.simulation.plot import plot
from earmark.commands.simulation.replay import replay
from earmark.commands.simulation.tables import tables
from earmark.commands.simulation.tally import SLICES, Tally
from earmark.commands.simulation.trace import (
    COLUMNS,
    MOST_MISTAKES,
    Trace,
    TraceError,
    read_trace,
)
from earmark.policies import Policies
from earmark.testing import ManualClock

HEAD: Final = ",".join(COLUMNS)
NOON: Final = 1_775_044_800  # 2026-04-01T12:00:00Z

POLICY: Final = """\
default:
  limits: {rpm: 2, tpd: 1_000, concurrency: 2}
tenants:
  - key: acme
    limits: {tpm: 100, algorithm: token_bucket}
    models:
      - {match: gpt*, limits: {itpm: 10}, enforce: false}
scopes:
  - {id: team, by: team, limits: {rps: 1}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policies file."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return path


def written(folder: Path, *lines: str, name: str = "trace.csv") -> Path:
    """A trace."""
    path = folder / name
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def quiet(done: int, total: int) -> None:
    """Nobody looks."""


def read(path: Path, *dims: str) -> Trace:
    """A trace that has no mistakes."""
    return read_trace(str(path), dims, quiet)


def replayed(trace: Trace, policies: Policies) -> Tally:
    """What its replay has counted."""
    return asyncio.run(replay(trace, policies, quiet))


def told(policy: Path, trace: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """What the command prints."""
    code = main(["simulate", str(policy), str(trace), *more])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    return output.out.splitlines()


def words(line: str) -> str:
    """A line of a table, without its widths."""
    return " ".join(line.split())


def test_who_is_refused_by_what_and_when(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three in a minute where two may, then a day's tokens, then slots; and a limit that only counts."""
    trace = written(
        tmp_path,
        HEAD,
        f"{NOON},bob,,10,10,1",
        f"{NOON + 1},bob,,10,10,1",
        f"{NOON + 2},bob,,10,10,1",  # the third in its minute
        f"{NOON + 60},bob,,900,61,1",  # 40 + 961
        f"{NOON + 120},eve,,0,0,100",
        f"{NOON + 121},eve,,0,0,100",
        f"{NOON + 180},eve,,0,0,1",  # both slots are taken
        f"{NOON + 220},eve,,0,0,1",  # one is free at this very moment
        f"{NOON + 230},acme,gpt-4o,11,0,1",  # an input more than is allowed, but that only counts
        f"{NOON + 239},acme,claude,11,0,1",
    )
    lines = told(policy, trace, capsys)
    assert lines[0] == "10 requests of 3 tenants in 239 seconds: 7 admitted, 3 refused (30.0 %)"
    assert [words(line) for line in lines[2:6]] == [
        "tenant requests refused tokens refused first refusal last",
        "bob 4 2 50.0 % 1,021 981 2026-04-01T12:00:02Z 2026-04-01T12:01:00Z",
        "eve 4 1 25.0 % 0 0 2026-04-01T12:03:00Z 2026-04-01T12:03:00Z",
        "acme 2 0 0.0 % 22 0 - -",
    ]
    assert [words(line) for line in lines[7:12]] == [
        "scope limit refused fullest first refusal",
        "tenant:bob 2 requests per minute 1 100.0 % 2026-04-01T12:00:02Z",
        "tenant:eve 2 at once 1 100.0 % 2026-04-01T12:03:00Z",
        "tenant:bob 1,000 tokens per day 1 4.0 % 2026-04-01T12:01:00Z",
        "rule:gpt*:acme 10 input_tokens per minute (would refuse) 1 110.0 % 2026-04-01T12:03:50Z",
    ]
    over_time = [line for line in lines if line.startswith("2026")]
    assert sum(int(line.split()[1]) for line in over_time) == 10
    assert sum(int(line.split()[2]) for line in over_time) == 3
    assert words(over_time[0]) == f"2026-04-01T12:00:00Z 3 1 100.0 % {'#' * 20}"


def by_hand(rows: list[tuple[float, str, str, int, int, float]], policies: Policies) -> list[int]:
    """The numbers of the requests that are refused, by a gateway that settles each by what it has used."""

    async def play() -> list[int]:
        clock = ManualClock()
        limiter = Limiter(MemoryBackend(clock=clock, lease=3_600))
        running: list[tuple[float, int, Reservation, Usage]] = []
        refused: list[int] = []

        async def settle_until(at: float) -> None:
            while running and running[0][0] <= at:
                end, _, reservation, usage = heapq.heappop(running)
                clock.set(end)
                assert await reservation.settle_success(usage)

        for number, (at, tenant, model, put, got, duration) in enumerate(rows):
            await settle_until(at)
            clock.set(at)
            scopes = policies.scopes(tenant=tenant, model=model)
            try:
                made = await limiter.pre_commit(*scopes, tokens=Usage(put, got, 0, 0))
            except RateLimited:
                refused.append(number)
            else:
                heapq.heappush(
                    running, (round(at + duration, 6), number, made, Usage(put, got, 0, 0))
                )
        await settle_until(float("inf"))
        return refused

    return asyncio.run(play())


def test_it_decides_as_a_gateway_would(tmp_path: Path) -> None:
    """R1, R6: whoever is refused here is refused by a gateway that lives through the same requests."""
    rng = random.Random(5)
    data = {
        "default": {"limits": {"rpm": 9, "otpm": 400, "algorithm": "sliding_window"}},
        "tenants": [
            {"key": "a", "limits": {"tpm": 900, "concurrency": 2, "algorithm": "token_bucket"}},
            {"key": "b", "limits": {"tpm": 900, "rps": 1}},
        ],
        "scopes": [{"id": "model", "by": "model", "limits": {"tpm": 2_000, "concurrency": 5}}],
    }
    policies = Policies(data)
    rows: list[tuple[float, str, str, int, int, float]] = []
    at = 0.0
    for _ in range(600):
        at = round(at + rng.choice([0, rng.random() * 2, rng.random() * 8]), 6)
        who = rng.choice(["a", "b", "c", "d"]), rng.choice(["", "m", "n"])
        rows.append((at, *who, rng.randint(0, 90), rng.randint(0, 90), round(rng.random() * 9, 6)))
    refused = by_hand(rows, policies)
    trace = written(tmp_path, HEAD, *(",".join(map(str, row)) for row in rows))
    tally = replayed(read(trace), policies)
    assert 100 < len(refused) < 500
    assert {name: one.refused for name, one in tally.tenants.items()} == Counter(
        rows[number][1] for number in refused
    )
    whens = Counter(
        (round(rows[number][0] * 1_000_000) - tally.start) // tally.width for number in refused
    )
    assert {slice_: number for slice_, number in enumerate(tally.refused) if number} == whens


def test_a_request_of_hours_keeps_its_slot(tmp_path: Path) -> None:
    """R10: it is renewed as it runs, and the slot is free at the moment at which it ends."""
    trace = written(
        tmp_path,
        HEAD,
        "0,a,,1,1,10800.5",
        "7200,a,,1,1,1",
        "10800,a,,1,1,1",
        "10800.5,a,,1,1,1",
    )
    tally = replayed(read(trace), Policies({"default": {"limits": {"concurrency": 1}}}))
    assert (tally.tenants["a"].refused, tally.tenants["a"].last) == (2, 10_800_000_000)


def test_whom_no_limit_concerns_is_admitted(tmp_path: Path) -> None:
    """A tenant without limits is counted like any other, and nothing is said of limits."""
    policies = Policies({"default": {"limits": {}}})
    tally = replayed(read(written(tmp_path, HEAD, "0,a,,1,2,3", "1,a,,1,2,3")), policies)
    assert (tally.tenants["a"].requests, tally.tenants["a"].tokens, tally.limits) == (2, 6, {})
    assert "no limit applies to any of them" in list(tables(tally))


def test_the_formats_say_the_same(tmp_path: Path) -> None:
    """CSV with a mark of its encoding, JSON lines, seconds and dates; columns and lines in any order."""
    csv = written(
        tmp_path,
        "\ufeffmodel,duration,team, time,tenant,note,output_tokens,input_tokens",
        f'm,2.5,red,{NOON + 1},"a, inc","x\ny",4,3',
        "",
        ",0,,2026-04-01T14:00:00+02:00,b,,0,0",
        "n,1e1,,2026-04-01T12:00:02,b,,1,0",
    )
    objects: list[dict[str, Any]] = [
        dict(zip(COLUMNS, (NOON + 1, "a, inc", "m", 3, 4, 2.5), strict=True)) | {"team": "red"},
        dict(zip(COLUMNS, (NOON, "b", None, 0, 0, 0), strict=True)),
        dict(zip(COLUMNS, ("2026-04-01T12:00:02Z", "b", "n", 0, 1, 10), strict=True)),
    ]
    lines = written(tmp_path, *map(json.dumps, objects), name="trace.jsonl")
    one, other = read(csv, "team"), read(lines, "team")
    assert one == other
    assert one.whos == [("a, inc", "m", "red"), ("b", "", ""), ("b", "n", "")]
    assert [at / 1_000_000 - NOON for at in one.time] == [1, 0, 2]
    assert list(one.order()) == [1, 0, 2]
    assert list(one.duration) == [2_500_000, 0, 10_000_000]


def test_what_limits_are_by_is_read(policy: Path, tmp_path: Path) -> None:
    """A column by the name of what limits are by counts for them; where it is missing they do not apply."""
    heads, rows = f"{HEAD},team", [f"{NOON},{tenant},,0,0,0,red" for tenant in "abc"]
    trace = read(written(tmp_path, heads, *rows), *Policies.load(policy).dims)
    tally = replayed(trace, Policies.load(policy))
    assert tally.limits["team:red", "fixed_window:1000000:requests"].refused == 2
    without = read(written(tmp_path, HEAD, *(row[:-4] for row in rows)), "team")
    assert sum(replayed(without, Policies.load(policy)).refused) == 0


GOOD: Final = f"{NOON},a,m,1,2,3"
OBJECT: Final = dict(zip(COLUMNS, (NOON, "a", "m", 1, 2, 3), strict=True))

MISTAKES: Final[list[tuple[str, list[str], list[str]]]] = [
    (
        "trace.csv",
        [HEAD, GOOD, "noon,a,m,1,2,3", GOOD],
        [":3: time: 'noon' is no time: write seconds, or a date such as 2026-04-01T12:30:00Z"],
    ),
    (
        "trace.csv",
        [HEAD, f"{NOON}000,a,m,1,2,3"],
        [
            f":2: time: '{NOON}000' is out of range: write seconds since 1970: milliseconds are divided by 1,000"
        ],
    ),
    ("trace.csv", [HEAD, "nan,a,m,1,2,3"], [":2: time: 'nan' is out of range: "]),
    ("trace.csv", [HEAD, "-1,a,m,1,2,3"], [":2: time: '-1' is out of range: "]),
    (
        "trace.csv",
        [HEAD, f"{NOON},,m,1.5,-2,soon"],
        [
            ":2: tenant: '' is no tenant: write who asks",
            ":2: input_tokens: '1.5' is no number of tokens: write a whole number, 0 or more",
            ":2: output_tokens: '-2' is no number of tokens: ",
            ":2: duration: 'soon' is no number of seconds: write for how long the request ran",
        ],
    ),
    (
        "trace.csv",
        [HEAD, f"{NOON},a,{'m' * 2_000},1,2,inf"],
        [":2: model: 'mmm", ":2: duration: 'inf' is no number of seconds"],
    ),
    ("trace.csv", [HEAD, f"{NOON},a,m,{2**53},2,3"], [f":2: input_tokens: '{2**53}' is no number"]),
    (
        "trace.csv",
        [HEAD, f"{NOON},a,m,1,2", f"{NOON},a,m,1,2,3,4"],
        [
            ":2: has 5 cells, and the first line has 6: write one for each column",
            ":3: has 7 cells, ",
        ],
    ),
    (
        "trace.csv",
        ["time,tenant,model,input,output,duration", GOOD],
        [
            ":1: input_tokens, output_tokens are missing; it has 'time', 'tenant', 'model', 'input', 'output', 'dura"
        ],
    ),
    ("trace.csv", [HEAD, f'{NOON},"a"b,m,1,2,3'], [":2: is no CSV ("]),
    ("trace.csv", [HEAD], [": has no requests: write one a line"]),
    ("trace.csv", [], [":1: time, tenant, model, input_tokens, output_tokens, duration are"]),
    (
        "trace.jsonl",
        [json.dumps(OBJECT), "{", "[1]", json.dumps(OBJECT | {"time": True})],
        [
            ":2: is no JSON (",
            ":3: [1] is no object: write an object with time, tenant",
            ":4: time: True is no time: ",
        ],
    ),
    (
        "trace.jsonl",
        [
            json.dumps({name: OBJECT[name] for name in COLUMNS if name != "duration"}),
            json.dumps(OBJECT | {"tenant": 7, "input_tokens": 1.0, "output_tokens": True}),
            json.dumps(OBJECT | {"time": 10**400, "duration": None}),
        ],
        [
            ":1: duration is missing; it has 'time', ",
            ":2: tenant: 7 is no name: write a text of at most 1,024 bytes of UTF-8",
            ":2: input_tokens: 1.0 is no number",
            ":2: output_tokens: True is no number",
            ":3: time: 1000",
            ":3: duration: None is no number of seconds",
        ],
    ),
    ("trace.txt", [HEAD, GOOD], [": the name does not say in which format it is: let it end with"]),
]


@pytest.mark.parametrize(("name", "lines", "problems"), MISTAKES)
def test_every_mistake_names_file_line_and_remedy(
    policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    lines: list[str],
    problems: list[str],
) -> None:
    """One a line on standard error, and 1; nothing is replayed."""
    trace = written(tmp_path, *lines, name=name)
    assert main(["simulate", str(policy), str(trace)]) == 1
    output = capsys.readouterr()
    assert not output.out
    found = output.err.splitlines()
    assert len(found) == len(problems), output.err
    for line, problem in zip(found, problems, strict=True):
        assert line.startswith(f"{trace}{problem}"), line


def test_text_that_is_no_utf_8_is_told(tmp_path: Path) -> None:
    """Bytes of another encoding are a mistake of their line."""
    path = tmp_path / "trace.csv"
    path.write_bytes(f"{HEAD}\n{NOON},caf\u00e9,m,1,2,3\n".encode("latin-1"))
    with pytest.raises(TraceError, match=r"trace.csv:2: tenant: .* is no name"):
        read(path)


def test_a_name_is_the_same_however_nothing_is_written(tmp_path: Path) -> None:
    """No model is null or empty; a name that has no hash is a mistake, also where it comes again."""
    same = [json.dumps(OBJECT | {"model": model}) for model in (None, "", None)]
    trace = read(written(tmp_path, *same, name="trace.jsonl"))
    assert (len(trace.whos), list(trace.who)) == (1, [0, 0, 0])
    wrong = json.dumps(OBJECT | {"model": ["m"]})
    with pytest.raises(TraceError) as caught:
        read(written(tmp_path, wrong, wrong, name="trace.jsonl"))
    assert [(one.place, one.line) for one in caught.value.mistakes] == [("model", 1), ("model", 2)]


def test_of_many_mistakes_the_first_are_told(tmp_path: Path) -> None:
    """A file of the wrong kind does not fill the screen."""
    trace = written(tmp_path, HEAD, *["x,a,m,1,2,3"] * (MOST_MISTAKES + 1_234))
    with pytest.raises(TraceError) as caught:
        read(trace)
    assert (len(caught.value.mistakes), caught.value.more) == (MOST_MISTAKES, 1_234)
    assert str(caught.value).splitlines()[-1] == "… and 1,234 more"


def test_what_is_not_there_is_told(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace or policies that are not there, or a picture that cannot be written: a line, and 1."""
    trace = written(tmp_path, HEAD, GOOD)
    nowhere = tmp_path / "nowhere"
    for words in (
        [str(policy), str(nowhere / "trace.csv")],
        [str(nowhere / "policy.yaml"), str(trace)],
        [str(policy), str(trace), "--svg", str(nowhere / "plot.svg")],
    ):
        assert main(["simulate", *words]) == 1
        output = capsys.readouterr()
        assert (output.out, "nowhere" in output.err) == ("", True)


def test_a_picture_that_cannot_be_written_is_told_before_the_replay(
    policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a minute of work is not thrown away for a misspelt folder; and no picture is lost to a bad trace."""
    trace, nowhere = written(tmp_path, HEAD, GOOD), tmp_path / "nowhere" / "plot.svg"
    picture = tmp_path / "plot.svg"
    picture.write_text("of yesterday", encoding="utf-8")
    monkeypatch.setattr("earmark.commands.simulation.replay.replay", None)  # which is not called
    assert main(["simulate", str(policy), str(trace), "--svg", str(nowhere)]) == 1
    why = f"{nowhere}: cannot be written (No such file or directory): name a file in a folder that is there\n"
    assert capsys.readouterr().err == why
    trace.write_text("time\n", encoding="utf-8")
    assert main(["simulate", str(policy), str(trace), "--svg", str(picture)]) == 1
    assert picture.read_text(encoding="utf-8") == "of yesterday"


SVG: Final = "{http://www.w3.org/2000/svg}"


def test_the_picture_shows_what_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid SVG, whatever is in a key: a bar for what was asked and refused, a line for each limit within its panel."""
    policy = written(tmp_path, '{"default": {"limits": {"rpm": 2}}}', name="policy.json")
    rows = [f'{NOON + at},"<a> & ""b""\x07",m,1,1,0' for at in range(0, 1_200, 20)]
    trace = written(tmp_path, HEAD, *rows)
    lines = told(policy, trace, capsys, "--svg", str(tmp_path / "plot.svg"))
    assert lines[0].endswith("40 admitted, 20 refused (33.3 %)")
    picture = ET.parse(tmp_path / "plot.svg").getroot()  # noqa: S314 - it is our own
    texts = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert "refused: 20" in texts
    assert 'tenant:<a> & "b"�: 2 requests per minute, 20 refused' in texts
    assert {"2026-04-01T12:00:00Z", "2026-04-01T12:19:40Z"} <= set(texts)
    bars = Counter(bar.get("fill") for bar in picture.iter(f"{SVG}rect"))
    assert (bars["#b0b0b0"], bars["#d55e00"]) == (40, 20)
    points = [
        tuple(map(float, point.split(",")))
        for kind in ("polyline", "polygon")
        for line in picture.iter(f"{SVG}{kind}")
        for point in (line.get("points") or "").split()
    ]
    assert len(points) == 60
    assert all(70 <= x <= 940 and 250 <= y <= 450 for x, y in points)


def test_a_picture_of_one_moment_and_no_limit() -> None:
    """All at once, and of a limit that admits nothing: no division by nothing."""
    tally = Tally(0, 0)
    tally.pass_by(0, "a", 1)
    assert ET.fromstring(plot(tally)).tag == f"{SVG}svg"  # noqa: S314 - it is our own
    assert len(tally.requests) == SLICES


def test_a_terminal_sees_how_far_it_is() -> None:
    """A bar in one line, which is gone at the end; what is no terminal sees nothing."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        with Bar("reading", out) as bar:
            bar(0, 2)
            bar(1, 2)
            bar(1, 2)
    assert file.getvalue() == ""
    shown = terminal.getvalue().split("\r")
    assert [line.strip() for line in shown if line.strip()] == [
        f"reading [{' ' * 30}]   0 %",
        f"reading [{'#' * 15}{' ' * 15}]  50 %",
    ]
    assert not shown[-1]
