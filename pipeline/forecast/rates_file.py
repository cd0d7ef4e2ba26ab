"""The file of measured rates in the private folder, with where and how they were measured."""

from __future__ import annotations

import json
import math
import os
import platform
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.plan.rates import Rates
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import MEASURED_RATES
from scoreshield.manifest.build import installed_versions

_FORMAT = 1
_SOFTWARE = ("scoreshield", "numpy", "scipy", "zarr", "dask", "distributed")


@dataclass(frozen=True)
class MachineRates:
    """Rates, and what they are rates of.

    Attributes
    ----------
    rates : as measured
    measured_at : UTC, ISO 8601
    host : name of the machine of the driver
    cores : its processor cores
    kind, workers, threads_per_worker : the cluster
    stored_as : type of a noisy value
    software : versions
    """

    rates: Rates
    measured_at: str
    host: str
    cores: int
    kind: str
    workers: int
    threads_per_worker: int
    stored_as: str
    software: dict[str, str]

    def differences(self, cluster: Cluster, stored_as: str) -> list[str]:
        """What was other than it would be now, in words."""
        here = here_and_now(self.rates, cluster, stored_as)
        pairs = {
            "host": (self.host, here.host),
            "cores": (self.cores, here.cores),
            "cluster kind": (self.kind, here.kind),
            "noisy values": (self.stored_as, here.stored_as),
            "threads per worker": (self.threads_per_worker, here.threads_per_worker),
        }
        software = {
            name: (self.software.get(name), here.software.get(name))
            for name in sorted(self.software.keys() | here.software.keys())
        }
        return [
            f"{name} {then}, now {now}"
            for name, (then, now) in (pairs | software).items()
            if then != now
        ]


def here_and_now(rates: Rates, cluster: Cluster, stored_as: str) -> MachineRates:
    """Rates with what they are rates of: this machine, this software, that cluster and type."""
    return MachineRates(
        rates=rates,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        cores=os.cpu_count() or 1,
        kind=cluster.kind,
        workers=cluster.workers,
        threads_per_worker=cluster.threads_per_worker,
        stored_as=stored_as,
        software={"python": platform.python_version(), **installed_versions(*_SOFTWARE)},
    )


def save_rates(private: Path, measured: MachineRates) -> Path:
    """Write the file, replacing an earlier one."""
    path = make_private(private) / MEASURED_RATES
    content = {"format": _FORMAT, **asdict(measured)}
    write_atomically(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    return path


def load_rates(private: Path) -> MachineRates | None:
    """The stored rates, or None where there is none.

    Raises
    ------
    ConfigurationError
        The file can't be read, is of another version, or holds what can't be a rate.
    """
    path = private / MEASURED_RATES
    try:
        return _parsed(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{path}: expected rates as 'scoreshield plan CONFIG --calibrate' writes them, found "
            f"something else ({' '.join(str(error).split())}); run that command again, or remove "
            "the file"
        ) from error


def _parsed(content: dict[str, Any]) -> MachineRates:
    if content.pop("format") != _FORMAT:
        raise ValueError("another format version")
    rates = Rates(**content.pop("rates"))
    for name, value in asdict(rates).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}")
    return MachineRates(rates=rates, **content)
