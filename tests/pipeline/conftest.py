"""A cluster, an object store, and small releases for the tests of those who read them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.config.cluster import Cluster
from pipeline.storage.object_path import ObjectPath
from tests.harness.cluster import THREADS
from tests.harness.object_store import BUCKET, Proxy, Server, start_server
from tests.harness.small_release import Made, make


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The cluster of two worker threads that tests without faults share."""
    with (
        THREADS.instead_of_processes(),
        open_cluster(Cluster(), tmp_path_factory.mktemp("scratch")) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Releases by method and arrays, each made once a session and not to be changed."""
    made: dict[tuple[str, tuple[str, ...]], Made] = {}

    def get(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Made:
        if (method, arrays) not in made:
            made[method, arrays] = make(tmp_path_factory.mktemp(method), method, arrays)
        return made[method, arrays]

    return get


@pytest.fixture
def release_copy(releases: Callable[..., Made], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a release that a test may damage."""

    def copy(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Path:
        return Path(shutil.copytree(releases(method, arrays).folder, tmp_path / "gram-test"))

    return copy


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One object store for all tests."""
    pytest.importorskip("obstore")
    running = start_server(tmp_path_factory.mktemp("object-store"))
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture
def bucket(
    object_server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ObjectPath:
    """A prefix of this test's own, with the environment that reaches it."""
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    return ObjectPath.parse(f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def proxy(
    object_server: Server, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """A proxy that this test's client is sent through."""
    running = Proxy(object_server)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
    yield running
    running.shutdown()
    running.server_close()
    thread.join()
