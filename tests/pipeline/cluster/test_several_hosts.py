"""Several hosts, each a network namespace with its own address, over TLS; links that are cut."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.cluster.certificates import make_certificates

COMMAND = str(Path(sys.executable).with_name("scoreshield"))
N, D, SIDE = 1000, 32, 64
HOSTS = ("scheduler", "first", "second", "driver")


def ip(*words: str) -> None:
    """Run ip(8), which must succeed."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def may_make_hosts() -> str | None:
    """Why this user can't make network namespaces; None where that is allowed."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    name = f"probe-{secrets.token_hex(3)}"
    for words in (["netns", "add", name], ["-n", name, "link", "add", "v", "type", "bridge"]):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"network namespaces are not permitted here ({done.stderr.strip()})"
    ip("netns", "delete", name)
    return None


@dataclass
class Network:
    """Hosts on one switch, each with a cable that can be pulled."""

    prefix: str = field(default_factory=lambda: f"s{secrets.token_hex(2)}-")
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        switch = self.host("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(HOSTS, start=1):
            host = self.host(name)
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            cable = ["link", "add", "eth0", "type", "veth", "peer", "name", name]
            ip("-n", host, *cable, "netns", switch)
            ip("-n", host, "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", switch, "link", "set", name, "master", "bridge")
            ip("-n", switch, "link", "set", name, "up")

    def host(self, name: str) -> str:
        """Name of a host's namespace."""
        return f"{self.prefix}{name}"

    def address(self, name: str) -> str:
        """Address of a host."""
        return f"10.99.0.{HOSTS.index(name) + 1}"

    def cut(self, name: str) -> None:
        """Pull a host's cable: packets are lost, nobody is told."""
        ip("-n", self.host("switch"), "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Put the cable back."""
        ip("-n", self.host("switch"), "link", "set", name, "up")

    def start(self, name: str, script: str, folder: Path) -> subprocess.Popen[bytes]:
        """Start a service on a host."""
        with (folder / f"{name}.log").open("ab") as log:
            service = subprocess.Popen(
                ["ip", "netns", "exec", self.host(name), "bash", "-uc", script],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(),
            )
        self.services.append(service)
        return service

    def close(self) -> None:
        """End every service and remove every host."""
        for service in self.services[::-1]:
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()
        for name in (*HOSTS, "switch"):
            ip("netns", "delete", self.host(name))


def environment() -> dict[str, str]:
    """A silent connection counts as dead after 11 seconds, the least that Dask takes, not 30."""
    return {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",
    }


@pytest.fixture
def network() -> Iterator[Network]:
    why_not = may_make_hosts()
    if why_not is not None:
        pytest.skip(why_not)
    made = Network()
    try:
        yield made
    finally:
        made.close()


def settle(folder: Path, cluster: dict[str, Any]) -> Path:
    """A source, a secret and a configuration that give the same bits in every folder."""
    folder.mkdir()
    random = np.random.default_rng(5)
    np.save(folder / "source.npy", (random.normal(size=(N, D)) + 1.0).astype(np.float32))
    (folder / "secret").write_text("0123456789abcdef" * 4)
    (folder / "secret").chmod(0o600)
    settings = {
        "gallery": "source.npy",
        "lineage": "00112233445566778899aabbccddeeff",
        "release": "several-hosts",
        "privacy": {"epsilon": 60.0, "delta": 1e-6, "adjacency": "record"},
        "projection": {"method": "nearest", "form": "blockwise", "tolerance": 1e-3},
        "block_side": SIDE,
        "secret": {"file": "secret"},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 90.0, "delta": 1e-6, "create": True},
        "cluster": {"workers": 2, "memory_limit": "1GiB", **cluster},
    }
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def released(folder: Path, output: str) -> dict[str, Any]:
    """What a manifest says of the bits, after the ledger was asked what they cost."""
    manifest = json.loads((Path(json.loads(output)["path"]) / "manifest.json").read_text())
    shown = subprocess.run(
        [COMMAND, "ledger", "show", "release.yaml", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    entries = json.loads(shown.stdout)["releases"]
    assert [(it["release_id"], it["state"]) for it in entries] == [("several-hosts", "committed")]
    return {
        "noisy": manifest["noisy"]["sha256"],
        **{name: array["sha256"] for name, array in manifest["arrays"].items()},
    }


def eventually(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def workers_said(folder: Path, name: str, words: str) -> int:
    return (folder / f"{name}.log").read_text().count(words)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_links_cut_in_perturb_and_in_project_change_nothing(
    network: Network, tmp_path: Path
) -> None:
    folder = tmp_path / "hosts"
    address = f"tls://{network.address('scheduler')}:8786"
    tls = {"ca": "tls/ca.pem", "certificate": "tls/cluster.pem", "key": "tls/cluster.key"}
    settle(folder, {"kind": "address", "address": address, "tls": tls, "wait": 60})
    make_certificates(folder / "tls", 1)
    network.start("scheduler", f"{COMMAND} cluster scheduler release.yaml", folder)
    for name in ("first", "second"):
        # As a service manager: what ends is started again.
        work = f"{COMMAND} cluster worker release.yaml --listen {network.address(name)}"
        network.start(name, f"while :; do {work}; sleep 0.2; done", folder)

    run = folder / "private" / "runs" / "several-hosts"
    cuts: list[str] = []

    def trouble() -> None:
        blocks = -(-N // SIDE)
        total = blocks * (blocks + 1) // 2
        eventually(lambda: len(list((run / "receipts").glob("*.json"))) > total // 6)
        joined = workers_said(folder, "first", "Registered to")
        network.cut("first")
        assert len(list((run / "receipts").glob("*.json"))) < total, "perturb was over too soon"
        cuts.append("perturb")
        # Its scheduler gives it up, it ends, is started again, and joins once the link is back.
        eventually(lambda: workers_said(folder, "first", "End worker") >= 1)
        network.mend("first")
        eventually(lambda: workers_said(folder, "first", "Registered to") > joined)
        eventually(lambda: list((run / "solver").glob("checkpoint*")) != [])
        network.cut("second")
        assert not (run / "projection").exists(), "project was over too soon"
        cuts.append("project")

    failures: list[BaseException] = []

    def troublemaker() -> None:
        try:
            trouble()
        except BaseException as error:
            failures.append(error)

    release = [COMMAND, "release", "release.yaml", "--json"]
    thread = threading.Thread(target=troublemaker)
    thread.start()
    done = subprocess.run(
        ["ip", "netns", "exec", network.host("driver"), *release],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment(),
    )
    thread.join()
    assert not failures, failures
    assert done.returncode == 0, done.stderr
    assert cuts == ["perturb", "project"]

    alone = tmp_path / "alone"
    settle(alone, {"kind": "local"})
    locally = subprocess.run(release, cwd=alone, capture_output=True, text=True, check=True)
    assert released(folder, done.stdout) == released(alone, locally.stdout)
