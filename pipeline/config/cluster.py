"""The ``cluster`` section of a configuration: one model a kind.

Every kind has a fixed number of workers. Whatever leaves this machine uses TLS: whoever reaches a
scheduler's port can run code as the curator.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Discriminator, Field, Tag, field_validator

from pipeline.config.paths import AnchoredPath
from pipeline.config.strict_model import Bytes, Count, Number, StrictModel, matching

TASK_TIMEOUT = 3600.0
"""Seconds."""
Kind = Literal["local", "address", "slurm", "kubernetes"]


class Cluster(StrictModel):
    """The machines that compute; without a ``kind``, worker processes on this machine."""

    kind: Kind = Field(
        default="local",
        description="`local`: worker processes on this machine; `address`: a scheduler that runs "
        "already; `slurm`: one SLURM job a worker; `kubernetes`: a cluster made by the Dask "
        "operator.",
    )
    workers: Count = Field(default=2, ge=1, le=1024, description="Worker processes.")
    threads_per_worker: Count = Field(
        default=1, ge=1, le=256, description="Blocks one worker computes at the same time."
    )
    memory_limit: Bytes = Field(
        default=ByteSize(4 * 2**30),
        ge=256 * 2**20,
        le=2**50,
        description="Memory of one worker, for instance `4GiB`; a plan that needs more is refused.",
    )
    task_timeout: Number = Field(
        default=TASK_TIMEOUT,
        ge=1,
        description="Seconds without a finished task or a reported iteration after which workers "
        "that are busy with this run count as hung: they are restarted once, then the run ends, to "
        "be resumed.",
    )

    @property
    def largest_team(self) -> int:
        """Threads that one task may use when it has the whole cluster to itself."""
        return self.workers * self.threads_per_worker

    @property
    def private_key(self) -> Path | None:
        """The key that opens the cluster, where it has one."""
        tls: Tls | None = getattr(self, "tls", None)
        return None if tls is None else tls.key


class Tls(StrictModel):
    """Certificates of a private authority; a cluster trusts whoever holds one of them."""

    ca: AnchoredPath = Field(description="Certificate of the authority, in PEM.")
    certificate: AnchoredPath = Field(
        description="Certificate that the authority has signed, in PEM."
    )
    key: AnchoredPath = Field(
        description="The certificate's private key, readable by its owner alone."
    )


class RemoteCluster(Cluster):
    """Workers on other machines, which take a while to appear."""

    wait: Number = Field(
        default=300.0,
        gt=0,
        le=7 * 86400,
        description="Seconds to wait until all workers are there; not for `local`.",
    )

    @property
    def largest_team(self) -> int:
        """One task stays on one machine, with the cores that its worker was given."""
        return self.threads_per_worker


class AddressCluster(RemoteCluster):
    """A scheduler that runs already."""

    kind: Literal["address"]
    address: str = Field(
        description="Where the scheduler listens: `tls://HOST:PORT`; for `address` alone."
    )
    tls: Tls

    @field_validator("address")
    @classmethod
    def _encrypted(cls, address: str) -> str:
        if re.fullmatch(r"tls://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", address):
            return address
        if address.startswith(("tcp://", "ucx://", "ws://", "inproc://")):
            raise ValueError(
                f"expected tls://HOST:PORT, found {address}; without TLS whoever reaches the port "
                "can read the gallery and run code, on this machine too. 'scoreshield cluster "
                "certificates' makes what TLS needs"
            )
        raise ValueError(f"expected tls://HOST:PORT, found {address!r}")

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The two parts of the address."""
        host, _, port = self.address.removeprefix("tls://").rpartition(":")
        return host.strip("[]"), int(port)


class SlurmCluster(RemoteCluster):
    """One job a worker; the scheduler runs with the command, on the machine that submits."""

    kind: Literal["slurm"]
    partition: str | None = Field(
        default=None, description="`slurm`: partition of the jobs; by default the site's own."
    )
    account: str | None = Field(default=None, description="`slurm`: account that the jobs go on.")
    walltime: Annotated[
        str,
        matching(r"[0-9]+(-[0-9]{1,2})?(:[0-9]{2}){0,2}", "a time such as 24:00:00, in quotes"),
    ] = Field(
        default="24:00:00",
        description="`slurm`: time limit of a job; longer than the whole run, or it must resume.",
    )
    interface: (
        Annotated[str, matching("[A-Za-z0-9._-]+", "a name of letters, digits and ._-")] | None
    ) = Field(
        default=None,
        description="`slurm`: network interface that all machines share, for instance `ib0`.",
    )
    directives: tuple[str, ...] = Field(
        default=(), description="`slurm`: further `#SBATCH` options, for instance `--exclusive`."
    )
    prologue: tuple[str, ...] = Field(
        default=(), description="`slurm`: shell lines before a worker, for instance `module load`."
    )

    @field_validator("partition", "account")
    @classmethod
    def _one_word(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9._,:@+-]+", name):
            raise ValueError(f"expected a name of letters, digits and ._,:@+-, found {name!r}")
        return name

    @field_validator("directives", "prologue")
    @classmethod
    def _lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            if "\n" in line or not line.strip():
                raise ValueError(f"expected one line each, found {line!r}")
        return lines


_DnsName = Annotated[
    str,
    matching(
        "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "a name of at most 63 lower-case letters, digits and inner dashes",
    ),
]
_Image = Annotated[
    str,
    matching("[a-z0-9][A-Za-z0-9._/:@-]*", "the name of an image, such as REGISTRY/NAME:TAG"),
]


class KubernetesCluster(RemoteCluster):
    """A cluster that the Dask operator makes for this run and removes after it."""

    kind: Literal["kubernetes"]
    image: _Image = Field(
        description="`kubernetes`: image of scheduler and workers; the one this command runs in.",
    )
    namespace: _DnsName = Field(
        default="scoreshield",
        description="`kubernetes`: namespace of the cluster.",
    )
    claim: _DnsName = Field(
        description="`kubernetes`: claim of the volume that holds the private folder, gallery and "
        "output; all pods mount it.",
    )
    mount: Path = Field(
        description="`kubernetes`: where all pods, this one too, mount that volume."
    )
    tls: Tls
    tls_secret: _DnsName = Field(
        description="`kubernetes`: Secret that holds the files of `tls` under their own names; "
        "pods mount it at the folder of `tls.ca`.",
    )

    @field_validator("mount")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError(f"expected an absolute path, found {path}")
        return path


SECTIONS: dict[str, type[Cluster]] = {
    "local": Cluster,
    "address": AddressCluster,
    "slurm": SlurmCluster,
    "kubernetes": KubernetesCluster,
}


def _kind(section: Any) -> str:
    """Which model checks a section; one of an unknown kind is the first's to refuse."""
    kind = section.get("kind") if isinstance(section, dict) else getattr(section, "kind", None)
    return kind if isinstance(kind, str) and kind in SECTIONS else "local"


AnyCluster = Annotated[
    Annotated[Cluster, Tag("local")]
    | Annotated[AddressCluster, Tag("address")]
    | Annotated[SlurmCluster, Tag("slurm")]
    | Annotated[KubernetesCluster, Tag("kubernetes")],
    Discriminator(_kind),
]
