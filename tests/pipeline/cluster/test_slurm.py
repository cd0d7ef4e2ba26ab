"""A release on a real SLURM: its controller, its node daemon and munge, on this machine alone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

COMMAND = str(Path(sys.executable).with_name("scoreshield"))
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def ready(environment: dict[str, str]) -> bool:
    asked = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() == "idle"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which SLURM's commands find it."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a SLURM of one node needs root and {', '.join(missing) or 'nothing else'}")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    controller, daemon = free_ports(2)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            controller=controller,
            daemon=daemon,
            folder=folder,
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    munge = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
    munge += [f"--seed-file={folder}/munge.seed", "--foreground", "--force"]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            daemons.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            time.sleep(0.5)
        deadline = time.monotonic() + 60
        while not ready(environment):
            assert time.monotonic() < deadline, "SLURM did not start"
            assert all(daemon.poll() is None for daemon in daemons), "a daemon of SLURM ended"
            time.sleep(0.2)
        yield environment
    finally:
        for process in daemons[::-1]:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def settings(**cluster: Any) -> dict[str, Any]:
    section = {"kind": "slurm", "interface": "lo", "memory_limit": "768MiB", "wait": 120}
    return {
        "gallery": "source.npy",
        "privacy": {"epsilon": 50.0, "delta": 1e-6, "adjacency": "record"},
        "projection": {"method": "shrink"},
        "block_side": 64,
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 75.0, "delta": 1e-6, "create": True},
        "cluster": {**section, **cluster},
    }


def released(folder: Path, environment: dict[str, str], **cluster: Any) -> Any:
    (folder / "release.yaml").write_text(yaml.safe_dump(settings(**cluster)))
    return subprocess.run(
        [COMMAND, "release", "release.yaml", "--json"],
        cwd=folder,
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def queued(environment: dict[str, str]) -> str:
    asked = subprocess.run(
        ["squeue", "--noheader"], env=environment, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


@pytest.mark.slow
def test_a_release_by_jobs_of_slurm(slurm: dict[str, str], tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.save(tmp_path / "source.npy", (random.normal(size=(300, 16)) + 1.5).astype(np.float32))
    # More workers than the node has room for: nothing is spent, and no job stays behind.
    refused = released(tmp_path, slurm, workers=20, wait=5)
    assert refused.returncode == 6, refused.stderr
    assert "of 20 after 5 s" in json.loads(refused.stdout)["error"]
    assert not (tmp_path / "ledger.db").exists()
    deadline = time.monotonic() + 60
    while queued(slurm):
        assert time.monotonic() < deadline, queued(slurm)
        time.sleep(0.5)
    done = released(tmp_path, slurm, workers=2)
    assert done.returncode == 0, done.stderr
    path = json.loads(done.stdout)["path"]
    subprocess.run([COMMAND, "verify", path], check=True, capture_output=True)
    record = next(tmp_path.glob("private/runs/*/run-record.json"))
    assert json.loads(record.read_text())["cluster"]["kind"] == "slurm"
    # Certificates and logs were in the run's scratch folder; a job that ends late leaves it empty.
    deadline = time.monotonic() + 30
    while any(path.is_file() for path in (record.parent / "scratch").rglob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
