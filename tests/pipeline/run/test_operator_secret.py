"""Releases under an operator's secret: resumable without their folder, and refused when it changed.

Where the secret is read from, and what is refused, is in tests/pipeline/perturb/test_secrets.py.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import BudgetRefused, ConfigurationError, IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.perturb.keyfile import bound_message, read_key
from pipeline.perturb.secret import derive_key
from pipeline.run.abandon import abandon
from tests.harness.curator import Curator

SECRET = bytes(range(150, 182))
MASTER = SECRET.hex().encode()
CHANGES: dict[str, Any] = {"arrays": ["factor"], "secret": {"file": "master.secret"}}


@pytest.fixture
def sworn(curator: Curator) -> Curator:
    """A curator with a master secret beside the configuration."""
    curator.write_secret(SECRET)
    return curator


def derived(curator: Curator, **changes: Any) -> bytes:
    run = curator.prepared(**CHANGES, **changes)
    bound_to = bound_message(content_digest(run.gallery), run.release_id, run.mechanism)
    return derive_key(MASTER, run.gallery.lineage, bound_to)


def test_a_release_under_a_secret_leaves_nothing_of_it(sworn: Curator) -> None:
    with_key = sworn.configure(**CHANGES)
    done = sworn.command("release", with_key.name, "--json")
    assert done.returncode == 0, done.stderr
    sworn.assert_spent_once(**CHANGES)
    key = derived(sworn)
    np.testing.assert_array_equal(sworn.noisy(**CHANGES), sworn.expected_noisy(key, **CHANGES))
    (sworn.root / "master.secret").unlink()
    written = {path: path.read_bytes() for path in sworn.root.rglob("*") if path.is_file()}
    written |= {Path("stdout"): done.stdout.encode(), Path("stderr"): done.stderr.encode()}
    for path, content in written.items():
        for secret in (key, MASTER, bytes.fromhex(MASTER.decode())):
            for form in (secret, secret.hex().encode(), base64.b64encode(secret)[:40]):
                assert form not in content, path
    record = json.loads(sworn.prepared(**CHANGES).folder.finished_record.read_text())
    assert record["key"] == "derived from the operator's secret"
    # Finished: neither the secret nor the ledger's budget is asked for again.
    assert not sworn.release(**CHANGES).newly


def test_a_lost_run_folder_is_made_again_with_the_same_bits(sworn: Curator) -> None:
    sworn.interrupt("perturb", 5, **CHANGES)
    run = sworn.prepared(**CHANGES)
    key = read_key(run.folder.key_file)
    assert key == derived(sworn)
    shutil.rmtree(run.folder.path)
    assert sworn.release(**CHANGES).newly
    sworn.assert_spent_once(**CHANGES)
    np.testing.assert_array_equal(sworn.noisy(**CHANGES), sworn.expected_noisy(key, **CHANGES))


@pytest.mark.parametrize("changed", ["secret", "gallery", "settings"])
def test_a_lost_run_folder_and_a_change_are_refused(sworn: Curator, changed: str) -> None:
    """One key on two matrices, or two noises on one gallery: neither is possible."""
    named = {**CHANGES, "release": "faces"}
    sworn.interrupt("perturb", 5, **named)
    folder = sworn.prepared(**named).folder
    shutil.rmtree(folder.path)
    if changed == "secret":
        sworn.write_secret(SECRET[::-1])
    elif changed == "gallery":
        sworn.write_source(seed=2)
    else:
        named["privacy"] = {**sworn.settings["privacy"], "score_range": [-1, 0.9]}
    # Settings that shape the noise are in the ledger too, which is asked first.
    said, kind = {
        "settings": ("faces", BudgetRefused),
    }.get(changed, ("another key than its secret, gallery and settings give", IntegrityFailure))
    with pytest.raises(kind, match=said):
        sworn.release(**named)
    assert not folder.key_file.exists()
    assert not folder.store.exists()


def test_one_secret_gives_each_release_its_own_key(sworn: Curator) -> None:
    cheap = {**sworn.settings["privacy"], "epsilon": 20.0}
    keys = set()
    for name in ("one", "two"):
        sworn.interrupt("perturb", 1, **CHANGES, privacy=cheap, release=name)
        run = sworn.prepared(**CHANGES, privacy=cheap, release=name)
        keys.add(read_key(run.folder.key_file))
        abandon(sworn.load(**CHANGES, privacy=cheap, release=name))
        assert not run.folder.key_file.exists()
    assert len(keys) == 2


def test_a_secret_that_cannot_be_read_is_found_before_anything_is_spent(sworn: Curator) -> None:
    (sworn.root / "master.secret").chmod(0o644)
    with pytest.raises(ConfigurationError, match="expected 0600"):
        sworn.release(**CHANGES)
    account = sworn.account(**CHANGES)
    assert account is None or not account.entries
    assert not list(sworn.root.rglob("*.key"))


def test_a_command_of_the_operator(sworn: Curator) -> None:
    changes = {**CHANGES, "secret": {"command": ["cat", str(sworn.root / "master.secret")]}}
    sworn.interrupt("perturb", 1, **changes)
    run = sworn.prepared(**changes)
    bound_to = bound_message(content_digest(run.gallery), run.release_id, run.mechanism)
    expected = derive_key(MASTER, run.gallery.lineage, bound_to)
    assert read_key(run.folder.key_file) == expected


def test_another_secret_is_refused_while_the_key_is_there(sworn: Curator) -> None:
    """Whoever swapped secrets would believe that the new one reproduces the run."""
    sworn.interrupt("perturb", 1, **CHANGES)
    (sworn.root / "master.secret").write_bytes(bytes(range(100, 140)))
    with pytest.raises(IntegrityFailure, match="another key than its secret"):
        sworn.release(**CHANGES)
