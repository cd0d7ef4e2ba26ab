"""A gallery ten times the memory of a worker is ingested and released within that memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.lib.format import open_memmap

from pipeline.plan.release import MIB, USABLE_SHARE
from pipeline.reader.verify import verify_release

N, D, QUERIES = 20_000, 32_768, 8
LIMIT = 256 * MIB
"""The least that a worker may have."""
DRIVER_LIMIT = 512 * MIB
"""Scheduler, ingest and libraries; it holds panels of rows and never the gallery."""


def write_source(path: Path) -> None:
    random = np.random.default_rng(5)
    source = open_memmap(path, "w+", np.float32, (N, D))
    for start in range(0, N, 500):
        source[start : start + 500] = random.standard_normal((500, D), dtype=np.float32) + 0.1
    source.flush()


def peaks_of(process: Any) -> tuple[int, int]:
    """The most resident bytes of the driver, and of any worker, until the command ends."""
    driver, worker = 0, 0
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            driver = max(driver, high_water(watched.pid))
            for child in watched.children(recursive=True):
                if "spawn_main" in " ".join(child.cmdline()):
                    worker = max(worker, high_water(child.pid))
        except (psutil.Error, OSError, StopIteration):
            pass  # A process that has just ended.
        time.sleep(0.1)
    return driver, worker


def high_water(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.scale
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_a_gallery_ten_times_the_memory_of_a_worker(curator: Any) -> None:
    write_source(curator.root / "source.npy")
    assert (curator.root / "source.npy").stat().st_size > 9.7 * LIMIT
    random = np.random.default_rng(6)
    np.save(curator.root / "queries.npy", unit(random.normal(size=(QUERIES, D))))
    del curator.settings["projection"]
    curator.settings |= {
        "regime": "scores",
        "queries": "queries.npy",
        "cluster": {"workers": 2, "memory_limit": LIMIT},
    }
    curator.configure()
    process = curator.start("release", "release.yaml", "--json")
    driver, worker = peaks_of(process)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert verify_release(json.loads(output)["path"]).ok
    curator.assert_spent_once()
    planned = curator.prepared().plan.peak_worker_bytes
    print(f"driver {driver / MIB:.0f} MiB, worker {worker / MIB:.0f}, planned {planned / MIB:.0f}")
    assert worker <= planned <= USABLE_SHARE * LIMIT
    assert driver <= DRIVER_LIMIT


@pytest.mark.scale
def test_what_does_not_fit_is_refused_before_spending(curator: Any) -> None:
    np.save(curator.root / "source.npy", np.ones((300, D), dtype=np.float32))
    curator.settings |= {"block_side": 300, "cluster": {"workers": 2, "memory_limit": LIMIT}}
    curator.configure()
    refused = curator.command("release", "release.yaml")
    assert refused.returncode == 2, refused.stderr
    assert "stage perturb needs" in refused.stderr
    assert "Nothing was spent" in refused.stderr
    assert not (curator.root / "ledger.db").exists()


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=1)[:, None]).astype(np.float32)
