"""Clusters that run already: schedulers and workers as services of this machine, over TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.harness.curator import default_settings

COMMAND = str(Path(sys.executable).with_name("scoreshield"))
DASK = str(Path(sys.executable).with_name("dask"))


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def may_mount() -> bool:
    """Whether this user can give a process file systems of its own."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    made = subprocess.run(
        [unshare, "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    return made.returncode == 0


@dataclass
class Site:
    """A folder with a source and a configuration, and the services that were started for it."""

    root: Path
    port: int = field(default_factory=free_port)
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """A small release on two workers."""
        return default_settings() | {"cluster": self.cluster()}

    def cluster(self, **changes: Any) -> dict[str, Any]:
        """The section ``cluster``."""
        tls = {"ca": "tls/ca.pem", "certificate": "tls/cluster.pem", "key": "tls/cluster.key"}
        section = {
            "kind": "address",
            "address": f"tls://127.0.0.1:{self.port}",
            "tls": tls,
            "workers": 2,
            "memory_limit": "512MiB",
            "wait": 60,
        }
        return {**section, **changes}

    def configure(self, name: str = "release.yaml", **changes: Any) -> Path:
        """Write a configuration."""
        path = self.root / name
        path.write_text(yaml.safe_dump({**self.settings, **changes}))
        return path

    def command(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [COMMAND, *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **options,
        )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a service; its output goes to a file."""
        log = (self.root / f"service-{len(self.services)}.log").open("wb")
        service = subprocess.Popen(
            words,
            cwd=self.root,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        )
        log.close()
        self.services.append(service)
        return service

    def start_scheduler(self) -> None:
        """Start the scheduler and wait until it listens."""
        self.start(COMMAND, "cluster", "scheduler", "release.yaml")
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)

    def tls_arguments(self) -> list[str]:
        """Certificates, for Dask's own commands."""
        tls = self.root / "tls"
        files = {"ca-file": "ca.pem", "cert": "cluster.pem", "key": "cluster.key"}
        return [word for part, name in files.items() for word in (f"--tls-{part}", str(tls / name))]

    def end(self, service: subprocess.Popen[bytes]) -> None:
        """End a service and what it started."""
        self.services.remove(service)
        service.terminate()
        try:
            service.wait(20)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()
