"""What `make test` does where a server is missing, on machines that are made of stand-ins for their programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests import servers
from tests.servers import redis_server

# By the package: the script, the program that it looks for, and what it installs.
KINDS: Final = {
    "redis-server": ("redis-server.sh", "redis-server", "redis-server openssl"),
    "postgresql": ("postgresql.sh", "initdb", "postgresql"),
}
SHELL: Final = shutil.which("sh") or "/bin/sh"

# The programs of a machine: each writes down how it was called, and apt-get brings what it is asked for.
NOTE: Final = 'echo "$(basename "$0") $*" >>"$HERE/log"'
INSTALL: Final = f"""{NOTE}
case "$*" in *install*)
    sh -c '"$POLICY_RC_D"; echo "policy $?"' >>"$HERE/log"
    for program in redis-server initdb; do
        printf "#!/bin/sh\\n" >"$HERE/$program"; chmod +x "$HERE/$program"
    done;;
esac"""
STAND_INS: Final = {
    "id": "echo 0",
    "sudo": f'{NOTE}\n[ "$1" = -n ] && shift\nexec "$@"',
    "apt-get": INSTALL,
}
REAL: Final = ("basename", "chmod", "env", "rm", "sh", "tee", "true")

Machine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The package of the server."""
    name: str = request.param
    return name


@pytest.fixture
def machine(tmp_path: Path, kind: str) -> Machine:
    """Runs the script where only these programs are."""

    def run(*names: str, **programs: str) -> subprocess.CompletedProcess[str]:
        for name in REAL:
            (tmp_path / name).symlink_to(shutil.which(name) or f"/bin/{name}")
        for name, text in ({name: STAND_INS[name] for name in names} | programs).items():
            (tmp_path / name).write_text(f"#!{SHELL}\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return subprocess.run(
            [SHELL, str(Path(__file__).parent / KINDS[kind][0])],
            env={
                "PATH": str(tmp_path),
                "HERE": str(tmp_path),
                "POSTGRESQL": str(tmp_path / "postgresql"),
                "POLICY_RC_D": str(policy(tmp_path)),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def policy(folder: Path) -> Path:
    """What packages ask before they start a service."""
    return folder / "policy-rc.d"


def log(folder: Path) -> list[str]:
    """How the stand-ins were called, in order."""
    file = folder / "log"
    return file.read_text().splitlines() if file.exists() else []


def test_nothing_is_done_where_it_is_there(machine: Machine, tmp_path: Path, kind: str) -> None:
    """No package manager is asked, and nothing is said."""
    done = machine("apt-get", "id", **{KINDS[kind][1]: "exit 0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert log(tmp_path) == []


@pytest.mark.parametrize("root", [True, False])
def test_it_is_installed_where_it_is_missing(
    machine: Machine, tmp_path: Path, kind: str, root: bool
) -> None:
    """As root, or by sudo. The package's service is told not to start, and that is taken back."""
    done = machine("apt-get", "sudo", "id") if root else machine("apt-get", "sudo", id="echo 1000")
    assert done.returncode == 0, done.stderr
    calls = log(tmp_path)
    (install,) = [call for call in calls if call.startswith("apt-get install")]
    assert install == f"apt-get install -qq -y --no-install-recommends {KINDS[kind][2]}"
    assert any(call.startswith("sudo apt-get update") for call in calls) != root
    assert "policy 101" in calls
    assert not policy(tmp_path).exists()


def test_a_policy_that_is_there_stays(machine: Machine, tmp_path: Path) -> None:
    """An administrator's own is neither written to nor removed."""
    policy(tmp_path).write_text(f"#!{SHELL}\nexit 7\n")
    policy(tmp_path).chmod(0o755)
    assert machine("apt-get", "id").returncode == 0
    assert "policy 7" in log(tmp_path)
    assert policy(tmp_path).read_text().endswith("exit 7\n")


@pytest.mark.parametrize(
    ("names", "programs", "reason"),
    [
        (("id",), {}, "there is no apt-get"),
        (("apt-get",), {"id": "echo 1000"}, "takes root, or sudo"),
        (("apt-get",), {"id": "echo 1000", "sudo": "exit 1"}, "takes root, or sudo"),
        (("id",), {"apt-get": '[ "$1" = update ]'}, "apt-get could not install it"),
        (("id",), {"apt-get": "exit 0"}, "the package brought none"),
    ],
    ids=["no apt-get", "no sudo", "no rights", "no package", "an empty package"],
)
def test_where_it_cannot_be_installed_that_is_said(
    machine: Machine,
    tmp_path: Path,
    kind: str,
    names: tuple[str, ...],
    programs: dict[str, str],
    reason: str,
) -> None:
    """`make test` ends there, with what is missing and how to get it, and leaves nothing behind."""
    done = machine(*names, **programs)
    assert done.returncode == 1
    assert reason in done.stderr
    assert f"sudo apt-get install {kind}" in done.stderr
    assert not policy(tmp_path).exists()


def test_somebody_elses_server_is_never_taken_for_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port may be taken between the look for one and the start: a benchmark would empty what is there."""
    with redis_server() as other, other.client() as client:
        client.set("theirs", "1")
        monkeypatch.setattr(servers, "free_port", lambda: other.port)
        with pytest.raises(pytest.fail.Exception, match="taken by another"), redis_server():
            pytest.fail("it has begun")
        assert client.get("theirs") == b"1"
