"""Clusters that run already: schedulers and workers as services of this machine, over TLS."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.cluster.certificates import make_certificates
from tests.harness.curator import embeddings
from tests.harness.site import COMMAND, Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A scheduler and two workers, started by the package's own commands."""
    made = Site(tmp_path_factory.mktemp("site"))
    np.save(made.root / "source.npy", embeddings())
    made.configure()
    make_certificates(made.root / "tls", 1)
    try:
        made.start_scheduler()
        made.start(COMMAND, "cluster", "worker", "release.yaml", "--workers", "2")
        yield made
    finally:
        for service in made.services[::-1]:
            made.end(service)
