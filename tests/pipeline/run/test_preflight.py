"""What preflight makes of a worker's account, and of certificates; real workers are in remote/."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pipeline.cluster.certificates import make_certificates
from pipeline.cluster.settings import EVERYWHERE, WORKER, WORKER_ENVIRONMENT
from pipeline.errors import ConfigurationError
from pipeline.run.preflight import CLOCK_TOLERANCE, FREE_SCRATCH, answer_faults
from pipeline.run.worker_report import Answer

RIGHT = Answer(
    host="b",
    machine="kernel mnt:[1]",
    user=1000,
    clock=1000.0,
    settings={**WORKER, **EVERYWHERE},
    environment=dict(WORKER_ENVIRONMENT),
    scratch="/scratch",
    scratch_free=FREE_SCRATCH,
    folders={"private": None, "output": None},
)


def test_a_worker_as_planned_has_no_fault() -> None:
    assert answer_faults(RIGHT, 1000.0, 1001.0) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clock": 1001.5 + CLOCK_TOLERANCE}, "clock is 10 s apart from this machine's, expected"),
        ({"clock": 999.5 - CLOCK_TOLERANCE}, "synchronise both (NTP)"),
        ({"scratch_free": 2**20}, "found 1.0 MiB free in /scratch, expected 4.0 MiB; make room"),
        (
            {"settings": {**RIGHT.settings, "distributed.worker.memory.spill": 0.7}},
            "found distributed.worker.memory.spill = 0.7, expected False; start it with",
        ),
        ({"environment": {"OMP_NUM_THREADS": None}}, "found OMP_NUM_THREADS=nothing in its"),
        ({"folders": {"private": "another folder"}}, "private: another folder; mount the same"),
    ],
)
def test_each_fault_is_one_line_with_its_remedy(change: dict[str, Any], said: str) -> None:
    (line,) = answer_faults(replace(RIGHT, **change), 1000.0, 1001.0)
    assert said in line
    assert "\n" not in line


def test_a_slow_answer_is_no_clock_fault() -> None:
    assert answer_faults(replace(RIGHT, clock=1050.0), 1000.0, 1100.0) == []


def test_certificates_are_private_short_lived_and_of_one_authority(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "tls", 3)
    files = [made.ca, made.certificate, made.key]
    assert sorted((tmp_path / "tls").iterdir()) == sorted(files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    ca, leaf = (x509.load_pem_x509_certificate(path.read_bytes()) for path in files[:2])
    leaf.verify_directly_issued_by(ca)
    assert leaf.not_valid_after_utc - datetime.now(UTC) < timedelta(days=3)
    key = load_pem_private_key(made.key.read_bytes(), None)
    # Of the two keys that were made, the one that is kept can sign no certificate.
    assert key.public_key() == leaf.public_key() != ca.public_key()
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_certificates_are_never_replaced(tmp_path: Path) -> None:
    before = make_certificates(tmp_path, 3).key.read_bytes()
    with pytest.raises(ConfigurationError, match=r"ca\.pem is there already"):
        make_certificates(tmp_path, 3)
    assert (tmp_path / "cluster.key").read_bytes() == before
