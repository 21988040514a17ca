"""Servers that speak TLS, with a certificate that is made for the occasion."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import HOST, RedisServer, free_port, redis_server


@dataclass(frozen=True)
class Secured:
    """A server that speaks TLS on a second port, and its certificate."""

    server: RedisServer
    port: int
    certificate: Path

    @property
    def url(self) -> str:
        """Where it speaks TLS, and whom to believe."""
        return f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={self.certificate}"


def knows_tls() -> bool:
    """Whether redis-server was built with TLS: without it the first of these is what it complains about."""
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is missing: sudo apt install redis-server"
    words = ("--port", "0", "--tls-port", "0", "--no-such-setting", "1")
    said = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    complaint = said.stdout + said.stderr
    assert ">>>" in complaint
    return "tls-port" not in complaint


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback address that vouches for itself, and its key."""
    program = shutil.which("openssl")
    assert program is not None, "openssl is missing: sudo apt install openssl"
    made, key = folder / "certificate.pem", folder / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost")
    kind = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    command = [program, "req", *kind, *subject, "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@contextmanager
def secured_server(folder: Path) -> Iterator[Secured]:
    """A server of its own, which speaks TLS as well; its certificate is put into the folder."""
    made, key = certificate(folder)
    port = free_port()
    settings = {
        "--tls-port": str(port),
        "--tls-cert-file": str(made),
        "--tls-key-file": str(key),
        "--tls-ca-cert-file": str(made),
        "--tls-auth-clients": "optional",
    }
    with redis_server(*(word for setting in settings.items() for word in setting)) as server:
        yield Secured(server, port, made)
