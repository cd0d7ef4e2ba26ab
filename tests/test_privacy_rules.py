"""The privacy rules, one class each: the test that fails when the rule is broken.

Where unit tests cover a rule in depth, the class says where; what stands here is the shortest check
that the rule holds in the product as it is assembled.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from pipeline.errors import IntegrityFailure
from pipeline.ledger import Ledger
from pipeline.perturb.keyfile import bound_message, check_binding, create_key, destroy_key, read_key
from pipeline.perturb.secret import derive_key
from pipeline.perturb.tasks import PerturbJob, ScoresJob, perturb_block, perturb_scores
from pipeline.plan.geometry import Triangle
from pipeline.storage.blocks import Receipt
from scoreshield.arithmetic.fixedpoint import exact_products, to_fixed, to_integers
from scoreshield.inmemory import perturb_gram, release_gram
from scoreshield.manifest.schema import Manifest
from scoreshield.mechanisms.gaussian import noisy_block
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores
from scoreshield.noise import sampler as noise
from scoreshield.noise.encoding import choose_encoding
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange
from tests.harness.curator import Curator
from tests.harness.gaussian import exact_delta
from tests.harness.steps import watch

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [
    file
    for package in ("scoreshield", "pipeline")
    for file in sorted((ROOT / package).rglob("*.py"))
]
KEY = bytes(range(32))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """A module's code; neither comments nor docstrings are names or numbers in it."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@cache
def code_names(file: Path) -> frozenset[str]:
    """Every dotted name in a module's code."""
    spelt = (node for node in nodes_of(file) if isinstance(node, ast.Attribute | ast.Name))
    return imported_names(file).union(ast.unparse(node) for node in spelt)


@cache
def imported_names(file: Path) -> frozenset[str]:
    """Every dotted name that a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def loaded_by(*modules: str) -> set[str]:
    """Modules that importing some loads, in a process of its own."""
    script = f"import {', '.join(modules)}, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@cache
def imports_in_source(module: str) -> set[str]:
    """Modules of this project that a module names in its imports."""
    path = ROOT / Path(*module.split("."))
    names = imported_names(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    return {
        found for name in names for found in (name, name.rpartition(".")[0]) if is_own_module(found)
    }


def is_own_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return name.split(".")[0] in ("scoreshield", "pipeline") and (
        path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    )


def reachable_from(module: str) -> set[str]:
    """Every module of this project that can be reached through imports, lazy ones too."""
    reached: set[str] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        # Importing a submodule runs the packages above it.
        parents = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
        waiting |= (imports_in_source(name) | parents) - reached
    return reached


class TestAnalyticCalibration:
    """Rule 1. In depth: tests/scoreshield/privacy/test_calibration.py."""

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 200.0])
    def test_delta_of_the_mechanism_in_use_is_what_is_claimed(self, epsilon: float) -> None:
        mechanism = calibrate_gram(100, 8, epsilon, 1e-6)
        with mpmath.workdps(60):
            mu = mpmath.mpf(mechanism.guarantee.sensitivity.value) / mpmath.mpf(mechanism.sigma)
            delta = exact_delta(mu, epsilon)
            assert mpmath.mpf(1e-6) * (1 - mpmath.mpf(1e-3)) <= delta <= mpmath.mpf(1e-6)

    @pytest.mark.parametrize("epsilon", [math.nan, math.inf, -1.0, 0.0])
    def test_nonsense_fails_closed(self, epsilon: float) -> None:
        with pytest.raises(ValueError, match="epsilon"):
            calibrate_gram(100, 8, epsilon, 1e-6)

    def test_the_classical_formula_is_nowhere(self) -> None:
        for file in PRODUCT:
            assert "1.25" not in code_constants(file), file


def code_constants(file: Path) -> set[str]:
    return {
        repr(node.value)
        for node in nodes_of(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    }


class TestSensitivity:
    """Rule 2. In depth: tests/scoreshield/privacy/test_sensitivity.py."""

    @pytest.mark.parametrize(
        ("adjacency", "expected"),
        [
            (Adjacency("record"), 2 * math.sqrt(99)),
            (Adjacency("shift", 0.1), 0.1 * math.sqrt(99)),
            (Adjacency("output", 3.0), 3.0 / math.sqrt(2)),
        ],
        ids=lambda value: getattr(value, "kind", None),
    )
    def test_of_the_upper_triangle(self, adjacency: Adjacency, expected: float) -> None:
        guarantee = calibrate_gram(100, 8, 1.0, 1e-6, adjacency).guarantee
        assert expected <= guarantee.sensitivity.value <= expected * 1.01
        assert guarantee.sensitivity.derivation

    def test_no_replaced_record_moves_the_clean_triangle_further(self) -> None:
        """The worst pair: all records equal, and one of them turned around."""
        n, d = 40, 4
        rows = to_fixed(np.tile([[1.0, 2.0, 3.0, 4.0]], (n, 1)))
        other = rows.copy()
        other[7] *= -1
        upper = np.triu_indices(n, 1)
        moved = np.linalg.norm(clean(rows)[upper] - clean(other)[upper])
        sensitivity = calibrate_gram(n, d, 1.0, 1e-6).guarantee.sensitivity.value
        assert sensitivity * (1 - 1e-3) <= moved <= sensitivity

    def test_a_promised_range_is_enforced_before_the_noise(self) -> None:
        rows = to_fixed(np.array([[1.0, 0.0], [-1.0, 0.1]]))
        full = calibrate_gram(2, 2, 1.0, 1e-6)
        promised = calibrate_gram(2, 2, 1.0, 1e-6, score_range=ScoreRange(0.0, 1.0))
        assert promised.guarantee.sensitivity.value <= full.guarantee.sensitivity.value * 0.51
        zero = to_fixed(np.array([[1.0, 0.0], [0.0, 1.0]]))
        np.testing.assert_array_equal(
            perturb_gram(rows, promised, KEY, "r"), perturb_gram(zero, promised, KEY, "r")
        )

    @pytest.mark.parametrize("kind", ["shift", "output"])
    def test_what_a_full_replacement_would_cost_is_said(self, kind: Any) -> None:
        mechanism = calibrate_gram(100, 8, 1.0, 1e-6, Adjacency(kind, 0.1))
        assert mechanism.implied.adjacency.kind == "record"
        assert mechanism.implied.epsilon > mechanism.guarantee.epsilon

    def test_scores_of_several_queries(self) -> None:
        queries = to_fixed(np.random.default_rng(3).normal(size=(5, 8)))
        value = calibrate_scores(100, queries, 1.0, 1e-6).guarantee.sensitivity.value
        expected = 2 * np.linalg.norm(queries.astype(np.float64), 2)
        assert expected <= value <= expected * 1.01


def clean(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    integers = to_integers(rows)
    return exact_products(integers, integers) * 2.0**-48


class TestExactArithmetic:
    """Rule 3. In depth: tests/scoreshield/arithmetic/test_fixedpoint.py, test_mechanism.py."""

    def test_clean_products_are_exact_in_any_order(self) -> None:
        random = np.random.default_rng(4)
        integers = to_integers(to_fixed(random.normal(size=(6, 500))))
        exact = [
            [sum(int(a) * int(b) for a, b in zip(x, y, strict=True)) for y in integers]
            for x in integers
        ]
        order = random.permutation(500)
        for arrangement in (integers, integers[:, order], integers[:, ::-1]):
            products = exact_products(
                np.ascontiguousarray(arrangement), np.ascontiguousarray(arrangement)
            )
            assert [[int(value) for value in row] for row in products] == exact

    def test_released_values_lie_on_the_public_grid(self) -> None:
        mechanism = calibrate_gram(50, 8, 1.0, 1e-6)
        rows = to_fixed(np.random.default_rng(5).normal(size=(50, 8)))
        assert math.frexp(mechanism.grid)[0] == 0.5
        # The cast to float32 is post-processing: undo it by asking for the nearest grid point.
        noisy = perturb_gram(rows, mechanism, KEY, "r")[np.triu_indices(50, 1)].astype(np.float64)
        grid_points = np.rint(noisy / mechanism.grid) * mechanism.grid
        np.testing.assert_array_equal(grid_points.astype(np.float32), noisy.astype(np.float32))


class TestCorrectlyRoundedGaussian:
    """Rule 4. In depth: tests/scoreshield/noise/test_sampler.py."""

    def test_no_other_generator_is_named_in_the_product(self) -> None:
        forbidden = {"random", "default_rng", "RandomState", "SeedSequence", "Generator"}
        allowed = {"typing", "collections.abc"}
        for file in PRODUCT:
            for name in code_names(file):
                parts = name.split(".")
                if name.rpartition(".")[0] not in allowed:
                    assert not forbidden & set(parts), f"{file.name}: {name}"

    def test_samples_are_integers_from_the_key_stream_alone(self) -> None:
        ratio = calibrate_gram(50, 8, 1.0, 1e-6).ratio
        state = np.random.get_state()
        first = noise.tile_noise(KEY, ratio, slice(0, 64), slice(0, 64))
        np.random.seed(1)
        again = noise.tile_noise(KEY, ratio, slice(0, 64), slice(0, 64))
        np.random.set_state(state)
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, np.rint(first))
        assert abs(first.std() / ratio - 1) < 0.05


class TestNoiseByPosition:
    """Rule 5. In depth: tests/scoreshield/mechanisms/test_gaussian.py, test_noise.py."""

    @pytest.mark.parametrize("side", [100, 256, 1000])
    def test_any_block_shape_gives_the_same_bits(self, side: int) -> None:
        n = 1100
        rows = to_fixed(np.random.default_rng(6).normal(size=(n, 4)))
        mechanism = calibrate_gram(n, 4, 10.0, 1e-6)
        whole = perturb_gram(rows, mechanism, KEY, "r")
        triangle = Triangle(n, side)
        for index in {0, 1, triangle.count // 2, triangle.count - 1}:
            i, j = triangle.position(index)
            down, across = triangle.span(i), triangle.span(j)
            block = noisy_block(
                mechanism, rows[down], rows[across], down.start, across.start, KEY, "r"
            )
            np.testing.assert_array_equal(block, whole[down, across])

    def test_tiles_do_not_repeat_one_another(self) -> None:
        keys = {
            noise.tile_key(KEY, release, array, row, column)
            for release in ("a", "b")
            for array in ("gram", "scores")
            for row in range(8)
            for column in range(8)
        }
        assert len(keys) == 2 * 2 * 8 * 8

    def test_the_tile_depends_on_nothing(self) -> None:
        assert noise.TILE == 1024


class TestRoundingForStorageIsPostProcessing:
    """DESIGN's storage. In depth: tests/scoreshield/noise/test_encoding.py."""

    @pytest.mark.parametrize("sigma", [1e-5, 0.05, 1.0, 1e3])
    def test_what_is_stored_follows_from_the_noisy_value_alone(self, sigma: float) -> None:
        encoding = choose_encoding(sigma)
        values = sigma * np.random.default_rng(9).normal(size=(70, 70))
        values[0, :3] = [3e38, -3e38, 1 + 9 * sigma]
        noisy = values.astype(np.float32)
        order = np.random.default_rng(10).permutation(noisy.size)
        shuffled = noisy.ravel()[order].reshape(noisy.shape)
        stored = encoding.encode(noisy).ravel()[order]
        np.testing.assert_array_equal(encoding.encode(shuffled).ravel(), stored)
        assert encoding.is_intact(stored)

    def test_the_step_is_chosen_before_any_value_exists(self) -> None:
        assert list(inspect.signature(choose_encoding).parameters) == ["sigma", "precision"]


class TestTheKeyIsSecret:
    """Rule 6. In depth: tests/pipeline/run/test_secrecy.py."""

    def test_its_file_is_its_owners_alone_and_is_destroyed(self, tmp_path: Path) -> None:
        path = tmp_path / "release.key"
        create_key(path, b"digest", "r", calibrate_gram(10, 4, 1.0, 1e-6))
        assert path.stat().st_mode & 0o777 == 0o600
        key = read_key(path)
        same_file = path.open("rb")
        destroy_key(path)
        assert not path.exists()
        with same_file:
            assert key.hex().encode() not in same_file.read()

    def test_a_file_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "release.key"
        create_key(path, b"digest", "r", calibrate_gram(10, 4, 1.0, 1e-6))
        path.chmod(0o640)
        with pytest.raises(IntegrityFailure, match="can be read by others"):
            read_key(path)

    def test_it_is_in_no_task_argument_and_in_no_field_of_the_manifest(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "release.key"
        mechanism = calibrate_gram(10, 4, 1.0, 1e-6)
        create_key(path, b"digest", "r", mechanism)
        job = PerturbJob(tmp_path, tmp_path, tmp_path, path, "c", "r", mechanism, Triangle(10, 16))
        key = read_key(path)
        for form in (key, key.hex().encode()):
            assert form not in pickle.dumps(job)
        assert not any("key" in name and name != "key_stream" for name in manifest_fields(Manifest))

    def test_errors_about_it_do_not_quote_it(self, tmp_path: Path) -> None:
        path = tmp_path / "release.key"
        path.write_text(json.dumps({"key": KEY.hex() + "0g", "binding": "x"}))
        path.chmod(0o600)
        with pytest.raises(IntegrityFailure) as failure:
            read_key(path)
        assert failure.value.__cause__ is None
        assert KEY.hex()[:16] not in str(failure.value)

    def test_no_setting_seeds_the_noise(self) -> None:
        """One option of one command does, and its result says NOT PRIVATE: test_unsafe_seed.py."""
        from pipeline.cli.main import cli
        from pipeline.config.model import Config

        assert not [name for name in Config.model_fields if "seed" in name or name == "random"]
        assert "seed" not in inspect.signature(release_gram).parameters
        seeded = [
            (name, option.name)
            for name, command in cli.commands.items()
            for option in command.params
            if "seed" in str(option.name)
        ]
        assert seeded == [("release", "unsafe_seed")]

    def test_an_operators_secret_gives_each_matrix_a_key_of_its_own(self) -> None:
        """In depth: tests/pipeline/perturb/test_secrets.py, release/test_operator_secret.py."""
        mechanisms = [calibrate_gram(10, 4, epsilon, 1e-6) for epsilon in (1.0, 2.0)]
        keys = {
            derive_key(KEY, lineage * 32, bound_message(digest, name, mechanism))
            for lineage in "ab"
            for digest in (b"one", b"two")
            for name in ("faces", "other")
            for mechanism in mechanisms
        }
        assert len(keys) == 16


def manifest_fields(model: Any) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if (
                isinstance(part, type)
                and hasattr(part, "model_fields")
                and part.__name__ != "Signature"
            ):
                yield from manifest_fields(part)


class TestOneKeyOneMatrix:
    """Rule 7. In depth: tests/pipeline/run/test_release.py (negative controls)."""

    def test_the_binding_covers_gallery_name_and_noise(self, tmp_path: Path) -> None:
        path = tmp_path / "release.key"
        mechanism = calibrate_gram(10, 4, 1.0, 1e-6)
        create_key(path, b"digest", "faces", mechanism)
        check_binding(path, b"digest", "faces", mechanism)
        for changed in (
            (b"other!", "faces", mechanism),
            (b"digest", "other", mechanism),
            (b"digest", "faces", calibrate_gram(10, 4, 1.1, 1e-6)),
            (b"digest", "faces", calibrate_gram(10, 4, 1.0, 1e-6, score_range=ScoreRange(0, 1))),
        ):
            with pytest.raises(IntegrityFailure, match="the same noise on both"):
                check_binding(path, *changed)

    def test_why_the_same_noise_on_two_galleries_reveals_their_difference(self) -> None:
        rows = to_fixed(np.random.default_rng(8).normal(size=(10, 4)))
        mechanism = calibrate_gram(10, 4, 1.0, 1e-6)
        difference = perturb_gram(rows, mechanism, KEY, "r") - perturb_gram(
            rows[::-1], mechanism, KEY, "r"
        )
        exact = clean(rows) - clean(rows[::-1])
        np.testing.assert_allclose(difference, exact, atol=1e-4)


class TestSpendBeforeNoise:
    """Rule 8. In depth: tests/pipeline/ledger, tests/pipeline/run/test_fault_matrix.py."""

    @pytest.mark.filterwarnings("ignore::pipeline.reader.open.NotPrivateWarning")
    @pytest.mark.parametrize(
        ("unsafe_seed", "start", "settling"),
        [(None, "secret reserve key commit_key", "commit"), (7, "key", "")],
    )
    def test_the_order_of_a_release(
        self,
        curator: Curator,
        monkeypatch: pytest.MonkeyPatch,
        unsafe_seed: int | None,
        start: str,
        settling: str,
    ) -> None:
        """Crashes between any two of these steps are injected in test_fault_matrix.py."""
        begun: list[str] = []
        ended: list[str] = []
        watch(monkeypatch, begun.append, ended.append)
        curator.release(unsafe_seed=unsafe_seed, secret=curator.write_secret(bytes(range(32))))
        made = "record_start noise project publish manifest"
        expected = f"preflight {start} {made} {settling} destroy_key record".split()
        assert [step for step, _ in groupby(begun)] == expected
        assert [step for step, _ in groupby(ended)] == expected
        assert begun.count("noise") == 15
        assert not list(curator.root.rglob("release.key"))

    def test_abandoned_stays_spent(self, tmp_path: Path) -> None:
        from pipeline.ledger import Budget, SpendRequest

        ledger = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "private")
        ledger.open_account("a" * 32, Budget(10.0, 1e-6), b"digest")
        entry = ledger.reserve("a" * 32, "one", SpendRequest(1.0, 1e-6, 2.0, 9.0, "record"))
        ledger.abandon("a" * 32, "one")
        assert ledger.account("a" * 32).spent == entry.spend > Fraction(0)


class TestTheManifestTellsNothingMore:
    """Rule 9. In depth: test_two_galleries_with_the_same_noisy_values_get_the_same_manifest."""

    def test_no_field_is_for_the_input_or_the_clock_of_a_block(self) -> None:
        names = set(manifest_fields(Manifest))
        telling = (
            "input",
            "source",
            "gallery",
            "embedding",
            "clean",
            "error",
            "seconds",
            "elapsed",
        )
        assert not [name for name in names if any(word in name for word in telling)]

    def test_it_is_built_from_public_things_alone(self) -> None:
        """Neither rows nor a gallery can be given to it."""
        from scoreshield.manifest.build import build_manifest

        annotations = inspect.signature(build_manifest).parameters.values()
        for parameter in annotations:
            assert "NDArray" not in str(parameter.annotation)
            assert "Gallery" not in str(parameter.annotation)


class TestACleanBlockNeverLeavesItsTask:
    """Rule 10."""

    def test_a_task_takes_places_and_settings_and_returns_a_digest(self) -> None:
        assert [field.name for field in fields(Receipt)] == ["block", "sha256"]
        for task in (perturb_block, perturb_scores):
            assert inspect.signature(task).return_annotation == "Receipt"
        assert is_dataclass(PerturbJob)
        plain = {"Path", "Place", "str", "bool", "Mechanism", "Geometry"}
        for job in (PerturbJob, ScoresJob):
            assert {str(field.type) for field in fields(job)} <= plain

    def test_no_other_module_of_the_pipeline_brings_rows_and_key_together(self) -> None:
        """Reading records for their digest, or a key for its commitment, makes no similarity."""
        rows = {"pipeline.gallery.dense.read_rows", "pipeline.gallery.sparse.read_sparse"}
        both = [
            file.relative_to(ROOT / "pipeline").as_posix()
            for file in (ROOT / "pipeline").rglob("*.py")
            if "pipeline.perturb.keyfile.read_committed_key" in (names := code_names(file))
            and rows & names
        ]
        assert both == ["perturb/tasks.py"]

    def test_a_similarity_leaves_the_mechanism_with_its_noise(self) -> None:
        """Without noise a value would be a multiple of 2^-48 that equals the clean one."""
        rows = to_fixed(np.random.default_rng(9).normal(size=(30, 4)))
        mechanism = calibrate_gram(30, 4, 1.0, 1e-6)
        noisy = noisy_block(mechanism, rows, rows, 0, 0, KEY, "r")
        upper = np.triu_indices(30, 1)
        residual = (noisy - clean(rows))[upper] / mechanism.sigma
        assert np.abs(residual).min() > 1e-6
        assert 0.85 < residual.std() < 1.15


def modules_of(*rooms: str) -> list[str]:
    """Every module of some rooms of the pipeline, read from their folders."""
    files = (file for room in rooms for file in sorted((ROOT / "pipeline" / room).rglob("*.py")))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


class TestProjectionIsPostProcessing:
    """The way data flow: nothing after `perturb` can reach what reads a gallery, or a key."""

    PRIVATE = ("pipeline.gallery", "pipeline.ingest", "pipeline.perturb")
    PUBLIC = modules_of("project", "publish", "reader")

    @pytest.mark.parametrize("module", PUBLIC)
    def test_no_module_after_perturb_names_the_gallery(self, module: str) -> None:
        """Not in any import that can be reached from it, lazy ones too."""
        assert not [name for name in reachable_from(module) if name.startswith(self.PRIVATE)]

    def test_no_module_after_perturb_loads_the_gallery(self) -> None:
        loaded = loaded_by(*(name.removesuffix(".__init__") for name in self.PUBLIC))
        assert set(self.PUBLIC) <= {*loaded, *(f"{name}.__init__" for name in loaded)}
        assert not [name for name in loaded if name.startswith(self.PRIVATE)]

    def test_the_walk_finds_what_is_there(self) -> None:
        """The control: a release reaches the gallery, and a lazy import counts."""
        assert set(self.PRIVATE) <= reachable_from("pipeline.run.release")
        assert "pipeline.run.release" in reachable_from("pipeline.cli.main")
        assert "pipeline.run.release" not in loaded_by("pipeline.cli.main")

    def test_scoreshield_never_imports_pipeline_dask_or_zarr(self) -> None:
        foreign = ("pipeline", "dask", "distributed", "zarr")
        for file in (ROOT / "scoreshield").rglob("*.py"):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            names = {name for name in code_names(file) if name.split(".")[0] in foreign}
            assert not names, f"{module}: {names}"
        for module in ("scoreshield", "scoreshield.inmemory", "scoreshield.manifest.build"):
            loaded = {name.split(".")[0] for name in loaded_by(module)}
            assert not loaded & set(foreign)


class TestEvaluateIsForTheCuratorAlone:
    """Rule 11 holds vacuously until there is an `evaluate`; then this test must be replaced."""

    def test_there_is_no_evaluate_yet(self) -> None:
        from pipeline.cli.main import cli

        assert "evaluate" not in cli.commands


class TestNegativeControls:
    """What must not pass, does not: docs/privacy.md names each control and the test of it."""

    CONTROLS = (
        "σ × 0.9",
        "Δ without the factor 2",
        "one key on two galleries",
        "fresh noise on a retry",
        "noise off the grid",
        "a ledger restored from an older copy",
        "a manifest edited by one character",
        "a run resumed with a changed gallery",
        "a run resumed with changed settings",
    )

    def rows(self) -> dict[str, list[str]]:
        text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
        table = text.split("## What must not pass")[1].split("\n## ")[0]
        cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:2] == "| "]
        return {row[0]: re.findall(r"`(tests/[^`]+)`", row[-1]) for row in cells[1:]}

    def test_each_has_a_test(self) -> None:
        rows = self.rows()
        assert set(rows) == set(self.CONTROLS)
        for control, named in rows.items():
            assert named, control
            for place in named:
                file, *names = place.split("::")
                text = (ROOT / file).read_text(encoding="utf-8")
                for name in names:
                    assert re.search(rf"(class|def) {name}\b", text), f"{control}: {place}"
