"""Readers of foreign bytes: whatever they are given loads, or is refused in words for people.

The same examples each time. Where one of them takes seconds or a lot of memory, a few bytes can
stop a curator's machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.ingest import open_source
from pipeline.publish.signing import check_signature, load_or_create_signing_key, sign
from pipeline.reader.description import render_markdown
from pipeline.reader.manifest_file import check_layout
from scoreshield.errors import InputRejected
from scoreshield.manifest.numbers import number_faults
from scoreshield.manifest.schema import from_json, to_json
from tests.harness.manifests import manifest_of

_SECONDS, _BYTES = 5.0, 64 * 2**20


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """A test of so many examples, the same ones each time."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """The body may not take long, in this process alone."""
    started = time.process_time()
    yield
    assert time.process_time() - started < _SECONDS


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """The body may take neither long nor much memory."""
    tracemalloc.start()
    try:
        with quick():
            yield
        assert tracemalloc.get_traced_memory()[1] < _BYTES
    finally:
        tracemalloc.stop()


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([10**30, -(10**30), 10**400, 2**53 + 1, 5e-324, 1e308, -1e308, 1e-300, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["0" * 64, "1/0", "9" * 4000 + "/7", "gram", "x" * 5000, "\x1b[2J", "\ud800"])
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree of mappings and lists, its root left out."""
    found = []
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in entries:
        found.append((*place, key))
        if isinstance(value, dict | list):
            found += places(value, (*place, key))
    return found


@st.composite
def changes(draw: st.DrawFn, content: Any) -> Any:
    """A tree with up to three of its places deleted, replaced or joined by others."""
    changed = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        found = places(changed)
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        inner = changed
        for key in path:
            inner = inner[key]
        action = draw(st.sampled_from(["replace", "replace", "replace", "delete", "add"]))
        if action == "delete":
            del inner[last]
        elif action == "replace":
            inner[last] = draw(trees)
        elif isinstance(inner, dict):
            inner[draw(st.text(max_size=6))] = draw(trees)
        else:
            inner.append(draw(trees))
    return changed


# Manifests


MANIFEST = manifest_of()
CONTENT = json.loads(to_json(MANIFEST))


def assert_shown_safely(said: str) -> None:
    """Whatever a stranger wrote into a manifest, a terminal shows one line of it."""
    assert said.isprintable()
    assert len(said) < 5000


def read_in_full(text: str | bytes) -> None:
    """What ``verify`` and ``show`` do with a manifest, short of reading arrays."""
    try:
        manifest = from_json(text)
    except InputRejected as error:
        assert_shown_safely(str(error))
        return
    assert from_json(to_json(manifest)) == manifest
    assert all(isinstance(fault, str) for fault in number_faults(manifest))
    assert render_markdown(manifest)
    for check in (check_layout, check_signature):
        try:
            check(manifest)
        except IntegrityFailure as error:
            assert_shown_safely(str(error))


@fuzzed(250)
@given(content=changes(CONTENT))
def test_a_changed_manifest_is_read_or_refused(content: Any) -> None:
    with bounded():
        read_in_full(json.dumps(content))


@fuzzed(150)
@given(data=st.data())
def test_a_manifest_with_other_bytes_is_read_or_refused(data: st.DataObject) -> None:
    with bounded():
        read_in_full(data.draw(spliced(to_json(MANIFEST).encode())))


@st.composite
def retold(draw: st.DrawFn, parts: tuple[str, ...], kinds: tuple[type, ...]) -> Any:
    """The manifest's content with one claim replaced by another of its kind."""
    changed = copy.deepcopy(CONTENT)
    *path, last = draw(st.sampled_from([claim for claim in claims(kinds) if claim[0] in parts]))
    inner = changed
    for key in path:
        inner = inner[key]
    value = inner[last]
    match value:
        case bool():
            inner[last] = not value
        case int():
            inner[last] = value + draw(st.integers(1, 3))
        case float():
            inner[last] = value * draw(st.sampled_from([0.5, 0.999, 1.001, 2.0]))
        case str():
            inner[last] = value + draw(st.sampled_from("0a "))
    return changed


def claims(kinds: tuple[type, ...]) -> Iterator[tuple[Any, ...]]:
    """Places of the manifest that hold one value of these kinds."""
    for place in places(CONTENT):
        value = CONTENT
        for key in place:
            value = value[key]
        if isinstance(value, kinds):
            yield place


@fuzzed(150)
@given(content=retold(tuple(CONTENT), (bool, int, float, str)))
def test_a_signature_gives_away_every_change(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    """Readable, and another than the true one: nobody but its curator can have signed it."""
    folder = tmp_path_factory.getbasetemp()
    for name in ("curator", "stranger"):
        (folder / name).mkdir(exist_ok=True)
    genuine = sign(MANIFEST, load_or_create_signing_key(folder / "curator"))
    try:
        manifest = from_json(json.dumps(content))
    except InputRejected:
        return
    kept = manifest.model_copy(update={"signature": genuine.signature})
    with pytest.raises(IntegrityFailure):
        check_signature(kept)
    forged = sign(manifest, load_or_create_signing_key(folder / "stranger"))
    assert from_json(to_json(forged)) == forged
    assert check_signature(forged)
    with pytest.raises(IntegrityFailure):
        check_signature(forged, check_signature(genuine))


@fuzzed(150)
@given(content=retold(("forecast", "mechanism", "privacy", "private"), (bool, int, float)))
def test_whoever_signs_a_changed_number_contradicts_himself(content: Any) -> None:
    assert number_faults(MANIFEST) == []
    with contextlib.suppress(InputRejected):
        assert number_faults(from_json(json.dumps(content)))


# Configurations


SETTINGS: dict[str, Any] = {
    "gallery": "faces.npy",
    "regime": "gram",
    "release": "mine",
    "output": "releases",
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "shift", "radius": 0.5},
    "projection": {"method": "nearest", "rank": 3, "form": "auto", "tolerance": 1e-4},
    "arrays": ["factor", "gram"],
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 2.0, "delta": 1e-5, "create": True},
    "secret": {"command": ["cat", "secret"], "timeout": 3},
    "cluster": {"kind": "slurm", "workers": 2, "memory_limit": "4GiB", "walltime": "1:00:00"},
    "metrics": {"port": 9000},
    "block_side": "auto",
}
YAML_TOKENS = st.sampled_from(
    [
        *"\t-:&*!|>%@`?{}[]'\"#\n~\x00\ufeff\u2028",
        *("- ", ": ", "&a ", "*a", "!!python/name:os.abort", "!!int ", "!!binary =", "<<: "),
        *("---\n", "...\n", "  ", "0x1f", "1:30", "2026-13-45", "9" * 5000, ".nan", "-.inf"),
    ]
)


def assert_loads_or_refuses(for_people: Callable[[str], None], path: Path) -> None:
    said = ""
    with quick():
        try:
            assert isinstance(load_config(path), Config)
        except ConfigurationError as error:
            said = str(error)
    for line in said.splitlines():
        assert line.startswith(str(path))
        for_people(line)


@fuzzed(120)
@given(content=changes(SETTINGS))
def test_changed_settings_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, for_people: Callable[[str], None], content: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.yaml"
    try:
        path.write_text(yaml.safe_dump(content))
    except (UnicodeEncodeError, yaml.YAMLError):
        assume(False)
    assert_loads_or_refuses(for_people, path)


@fuzzed(120)
@given(data=st.data(), token=YAML_TOKENS)
def test_settings_with_other_text_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory,
    for_people: Callable[[str], None],
    data: st.DataObject,
    token: str,
) -> None:
    text = yaml.safe_dump(SETTINGS)
    start = data.draw(st.integers(0, len(text)))
    stop = min(len(text), start + data.draw(st.integers(0, 12)))
    path = tmp_path_factory.getbasetemp() / "spliced.yaml"
    path.write_text(text[:start] + token + text[stop:], encoding="utf-8")
    assert_loads_or_refuses(for_people, path)


# Headers of sources


@st.composite
def spliced(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of which some are cut out, some put in, and some changed."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        stop = min(len(changed), start + draw(st.integers(0, 8)))
        changed[start:stop] = draw(st.binary(max_size=8))
    return bytes(changed)


ROWS = np.arange(1.0, 13.0).reshape(4, 3)
HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3), }".ljust(
    127
)
SEEDS = {
    "a.npy": HEADER + b"\n" + ROWS.tobytes(),
    "a.fvecs": b"".join(struct.pack("<i3f", 3, *row) for row in ROWS),
    "a.bvecs": b"".join(struct.pack("<i3B", 3, 1, 2, 3) for _ in ROWS),
    "a.vec": b"4 3\n" + b"".join(b"w%d 1.5 2 3\n" % row for row in range(4)),
    "a.txt": b"".join(b"w%d 1.5 2 3\n" % row for row in range(4)),
    "a.safetensors": struct.pack("<Q", 64)
    + b'{"a":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]}}'.ljust(64)
    + ROWS.astype("<f4").tobytes(),
}


@pytest.mark.parametrize("name", SEEDS)
def test_the_seeds_are_sources(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(SEEDS[name])
    assert open_source(tmp_path / name).shape == (4, 3)


@fuzzed(250)
@given(name=st.sampled_from(sorted(SEEDS)), data=st.data())
@example(name="a.vec", data=None)
def test_other_bytes_in_a_source_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    for_people: Callable[[str], None],
    name: str,
    data: st.DataObject | None,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = b"9" * 5000 + b" 3\n" if data is None else data.draw(spliced(SEEDS[name]))
    (folder / name).write_bytes(content)
    said = ""
    with bounded():
        try:
            source = open_source(folder / name)
            rows = sum(panel.shape[0] for panel in source.panels(2, folder))
            assert (rows, source.shape[1] > 0) == (source.shape[0], True)
        except InputRejected as error:
            said = str(error)
    if said:
        assert said.startswith(str(folder / name))
        for_people(said)
