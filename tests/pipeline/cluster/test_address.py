"""A release on a cluster that runs already, and everything that keeps one from being made there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from pipeline.cluster.address import check_file, security_of
from pipeline.cluster.certificates import make_certificates
from pipeline.config.cluster import AddressCluster
from pipeline.config.yaml import load_config
from pipeline.errors import ScoreShieldError, exit_code
from pipeline.progress import Tee
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.release import release
from tests.harness.site import COMMAND, DASK, Site, may_mount


def nothing_spent(site: Site) -> bool:
    """No ledger, no key, no noise."""
    config = load_config(site.root / "release.yaml")
    left = list((site.root / "private").rglob("*.key"))
    return not ConfiguredLedger(config).exists and not left


def refused(site: Site, code: int, **changes: Any) -> list[str]:
    """The lines with which a release is refused."""
    config = load_config(site.configure("refused.yaml", **changes))
    with pytest.raises(ScoreShieldError) as caught:
        release(config, Tee())
    assert exit_code(caught.value) == code
    assert nothing_spent(site)
    return str(caught.value).splitlines()


# In the order of the file: the refusals come first, so that nothing is spent when they look.


def test_other_threads_and_memory_than_planned(site: Site) -> None:
    lines = refused(
        site, 2, cluster=site.cluster(threads_per_worker=2, memory_limit="1GiB"), block_side="auto"
    )
    assert lines[0].startswith("the cluster is not what this release was planned for")
    assert sum("found 1 threads, expected cluster.threads_per_worker 2" in it for it in lines) == 2
    assert sum("found a memory limit of 512.0 MiB, expected" in it for it in lines) == 2
    assert all(it.startswith("worker tls://127.0.0.1:") for it in lines[1:-1])
    assert lines[-1] == "Nothing was spent by this attempt."


def test_fewer_workers_than_configured(site: Site) -> None:
    (line,) = refused(site, 6, cluster=site.cluster(workers=3, wait=1))
    assert line.startswith("cluster.workers: found 2 of 3 after 1 s")


def test_a_scheduler_of_another_authority(site: Site) -> None:
    make_certificates(site.root / "other", 1)
    tls = {name: f"other/{file}" for name, file in FILES.items()}
    (line,) = refused(site, 6, cluster=site.cluster(tls=tls))
    assert "CERTIFICATE_VERIFY_FAILED" in line


FILES = {"ca": "ca.pem", "certificate": "cluster.pem", "key": "cluster.key"}


def test_certificates_that_are_missing_or_that_others_can_read(site: Site) -> None:
    tls = {name: f"nowhere/{file}" for name, file in FILES.items()}
    (line,) = refused(site, 2, cluster=site.cluster(tls=tls))
    assert line.startswith("cluster.tls.ca: ")
    assert "can't be read (No such file or directory)" in line
    shutil.copytree(site.root / "tls", site.root / "open")
    (site.root / "open" / "cluster.key").chmod(0o644)
    tls = {name: f"open/{file}" for name, file in FILES.items()}
    (line,) = refused(site, 2, cluster=site.cluster(tls=tls))
    assert "cluster.key has mode 0644, expected 0600" in line


def test_a_key_that_a_group_can_read(site: Site) -> None:
    shutil.copytree(site.root / "tls", site.root / "shared")
    key = site.root / "shared" / "cluster.key"
    key.chmod(0o640)
    tls = {name: f"shared/{file}" for name, file in FILES.items()}
    (line,) = refused(site, 2, cluster=site.cluster(tls=tls))
    assert "cluster.key has mode 0640, expected 0600" in line
    if os.geteuid() == 0:
        # As Kubernetes mounts it: another owner's, for a group of the pod alone.
        os.chown(key, 10001, 10001)
        check_file("cluster.tls.key", key, secret=True)


def test_nobody_without_a_certificate_gets_in(site: Site) -> None:
    with pytest.raises(OSError):  # noqa: PT011 (Dask's message is its own)
        Client(f"tcp://127.0.0.1:{site.port}", timeout=2)
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", site.port), timeout=5) as plain,
        anonymous.wrap_socket(plain) as encrypted,
        pytest.raises(ssl.SSLError, match="certificate required"),
    ):
        encrypted.recv(1)


def test_the_scheduler_listens_where_it_was_told_to(site: Site) -> None:
    """Dask opens a second port, outside TLS, even where it serves no page."""
    descriptors = Path(f"/proc/{site.services[0].pid}/fd")
    own = {os.readlink(found) for found in descriptors.iterdir()}
    sockets = [
        line.split()
        for family in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]
    ]
    listening = "0A"
    hosts = {
        fields[1].partition(":")[0]
        for fields in sockets
        if fields[3] == listening and f"socket:[{fields[9]}]" in own
    }
    assert hosts == {"0100007F"}


def joined(site: Site, service: subprocess.Popen[bytes], count: int) -> None:
    """Wait for a worker that a test has started."""
    section = load_config(site.root / "release.yaml").cluster
    assert isinstance(section, AddressCluster)
    with Client(section.address, security=security_of(section.tls)) as client:
        client.wait_for_workers(count, timeout=60)
    assert service.poll() is None


def test_a_worker_that_dask_started_with_its_own_defaults(site: Site) -> None:
    command = [DASK, "worker", f"tls://127.0.0.1:{site.port}", *site.tls_arguments()]
    command += ["--no-dashboard", "--no-nanny", "--nthreads", "1", "--memory-limit", "0"]
    service = site.start(*command, ZARR_ASYNC__CONCURRENCY="10")
    try:
        joined(site, service, 3)
        lines = refused(site, 2)[1:-1]
    finally:
        site.end(service)
    assert len({line.split(": found")[0].partition(" on ")[0] for line in lines}) == 1
    text = "\n".join(lines)
    for expected in (
        "found a memory limit of nothing, expected at least",
        "found no nanny",
        "found distributed.worker.memory.spill = 0.7, expected False; start it with 'scoreshield "
        "cluster worker CONFIG' or with deploy/dask/distributed.yaml",
        "found distributed.worker.profile.enabled = True, expected False",
        "found distributed.comm.retry.count = 0, expected 3",
        "found ZARR_ASYNC__CONCURRENCY=10 in its environment, expected 4",
    ):
        assert expected in text


def test_a_worker_without_this_code(site: Site) -> None:
    other = site.root / "other-code" / "pipeline"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('another package of this name')")
    command = [DASK, "worker", f"tls://127.0.0.1:{site.port}", *site.tls_arguments()]
    command += ["--no-dashboard", "--nthreads", "1", "--memory-limit", "512MiB"]
    service = site.start(*command, PYTHONPATH=str(other.parent))
    try:
        joined(site, service, 3)
        (line,) = refused(site, 2)[1:-1]
    finally:
        site.end(service)
    assert "can't run scoreshield (" in line
    assert "another package of this name" in line


def test_a_worker_that_sees_other_files(site: Site) -> None:
    """Another file system at the same place, and a copy of the gallery that differs in a row."""
    if not may_mount():
        pytest.skip("this user may not mount file systems")
    (gallery,) = (site.root / "private" / "galleries").iterdir()
    copy = site.root / "copy"
    shutil.copytree(gallery, copy)
    chunk = next(path for path in sorted(copy.rglob("c.*")) if path.is_file())
    script = f"""
        mount --bind {copy} {gallery}
        mkdir -p releases && mount -t tmpfs none releases
        exec {COMMAND} cluster worker release.yaml
    """
    service = site.start("unshare", "--mount", "bash", "-euc", script)
    try:
        joined(site, service, 3)
        (line,) = refused(site, 2)[1:-1]
        assert "output: another place of that name" in line
        damaged = bytearray(chunk.read_bytes())
        damaged[0] ^= 1
        chunk.write_bytes(damaged)
        lines = refused(site, 2, output="elsewhere")[1:-1]
    finally:
        site.end(service)
    assert len(lines) == 1
    assert f"gallery {gallery}" in lines[0]
    assert "expected the gallery as this machine reads it" in lines[0]


def test_a_release_and_nothing_left_behind(site: Site) -> None:
    done = site.command("release", "release.yaml", "--json")
    assert done.returncode == 0, done.stderr
    release = Path(json.loads(done.stdout)["path"])
    assert site.command("verify", str(release)).returncode == 0
    assert list(site.root.rglob(".preflight-*")) == []
    again = site.command("release", "release.yaml", "--json")
    assert json.loads(again.stdout)["newly_released"] is False
    # The services go on: a second release is made by the same processes.
    site.configure("second.yaml", release="second", privacy=SMALL)
    assert site.command("release", "second.yaml").returncode == 0
    assert all(service.poll() is None for service in site.services)
    assert os.stat(site.root / "tls" / "cluster.key").st_mode & 0o077 == 0


SMALL = {"epsilon": 5.0, "delta": 1e-6, "adjacency": "record"}
