"""Every kind of damage is found and named, and an intact release is never misreported."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.project.dense import unprojected
from pipeline.publish.gram import describe_arrays, finish
from pipeline.publish.signing import load_or_create_signing_key, public_key, sign
from pipeline.reader import feasibility
from pipeline.reader.manifest_file import verify_manifest
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.storage import arrays
from scoreshield.manifest.build import build_manifest
from scoreshield.manifest.schema import from_json, to_json
from scoreshield.mechanisms.gram import calibrate_gram

BOTH, GRAM, FACTOR = ("factor", "gram"), ("gram",), ("factor",)
STORE = "release.zarr"


def faults(path: Path, **options: Any) -> dict[str, str]:
    return {check.name: check.detail for check in verify_release(path, **options).faults}


@pytest.mark.parametrize(
    ("method", "arrays"),
    [("nearest", BOTH), ("aap", BOTH), ("nearest", GRAM), ("aap", FACTOR), ("none", GRAM)],
)
def test_an_intact_release_passes(
    releases: Callable[..., Any], method: str, arrays: tuple[str, ...]
) -> None:
    report = verify_release(releases(method, arrays).folder)
    assert report.ok, report.faults


def test_what_is_checked_of_a_full_release(releases: Callable[..., Any]) -> None:
    names = [check.name for check in verify_release(releases().folder).checks]
    assert names == [
        "manifest",
        "signature",
        "name",
        "folder",
        "attributes",
        "numbers agree",
        "metadata",
        "files",
        "checksums",
        "digest of diagonal",
        "digest of factor",
        "digest of gram",
        "factor norms",
        "diagonal",
        "unit diagonal",
        "gram diagonal",
        "gram symmetry",
        "gram range",
        "gram agrees with factor",
        "smallest eigenvalue",
    ]


def test_the_eigenvalue_bound_from_the_factor_holds(releases: Callable[..., Any]) -> None:
    folder = releases().folder
    gram = zarr.open_group(str(folder / STORE), mode="r")["gram"][:].astype(np.float64)
    bound = verify_release(folder).checks[-1].value
    assert -1e-5 < bound <= np.linalg.eigvalsh(gram)[0]


def test_method_none_claims_nothing(releases: Callable[..., Any]) -> None:
    check = verify_release(releases("none", GRAM).folder).checks[-1]
    assert check.name == "smallest eigenvalue"
    assert check.ok
    assert check.value < 0
    assert "not claimed" in check.detail


@pytest.mark.parametrize("method", ["nearest", "none"])
def test_lanczos_agrees_with_the_full_spectrum(
    releases: Callable[..., Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = releases(method, GRAM).folder
    dense = verify_release(folder).checks[-1].value
    monkeypatch.setattr(feasibility, "DENSE_LIMIT", 10)
    check = verify_release(folder).checks[-1]
    assert "Lanczos" in check.detail
    assert check.value == pytest.approx(dense, rel=1e-2, abs=1e-5)


CHUNKS = [
    "factor/c/0/0",
    "factor/c/3/0",
    "diagonal/c/0",
    "diagonal/c/3",
    "gram/c/0/0",
    "gram/c/1/2",
    "gram/c/2/1",
    "gram/c/3/3",
]


@pytest.mark.parametrize(
    ("chunk", "place"), [*((chunk, 21) for chunk in CHUNKS), (CHUNKS[5], 0), (CHUNKS[5], -1)]
)
def test_a_flipped_byte_is_named(release_copy: Callable[..., Path], chunk: str, place: int) -> None:
    release = release_copy()
    file = release / STORE / chunk
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(bytes(content))
    found = faults(release)
    assert set(found) == {"checksums"}
    assert chunk in found["checksums"]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_truncated_chunk_is_named(release_copy: Callable[..., Path], chunk: str) -> None:
    release = release_copy()
    file = release / STORE / chunk
    file.write_bytes(file.read_bytes()[:-1])
    found = faults(release)
    assert set(found) == {"files"}
    assert chunk in found["files"]
    assert "bytes, expected" in found["files"]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_missing_chunk_is_named(release_copy: Callable[..., Path], chunk: str) -> None:
    release = release_copy()
    (release / STORE / chunk).unlink()
    assert faults(release) == {"files": f"1 fault(s): {chunk} is missing"}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("gram/c/0/1", "gram/c/1/0", {"digest of gram", "gram agrees with factor"}),
        ("gram/c/0/1", "gram/c/0/2", {"digest of gram", "gram symmetry"}),
        ("gram/c/0/0", "gram/c/1/1", {"digest of gram", "gram agrees with factor"}),
        ("factor/c/0/0", "factor/c/1/0", {"digest of factor", "gram agrees with factor"}),
        ("diagonal/c/0", "diagonal/c/1", {"digest of diagonal"}),
    ],
)
def test_swapped_chunks_are_named(
    release_copy: Callable[..., Path], first: str, second: str, named: set[str]
) -> None:
    release = release_copy()
    one, other = release / STORE / first, release / STORE / second
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert named <= set(faults(release))


@pytest.mark.parametrize(
    "name", ["gram/c/0/4", "gram/c/1/1.abc.partial", "notes.txt", "gram/c/0/x"]
)
def test_an_extra_file_is_named(release_copy: Callable[..., Path], name: str) -> None:
    release = release_copy()
    file = release / STORE / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"{}")
    assert faults(release) == {"files": f"1 fault(s): {name} does not belong there"}


@pytest.mark.parametrize("name", ["clean", "gram/c/9", "x/y"])
def test_an_extra_folder_is_named(release_copy: Callable[..., Path], name: str) -> None:
    release = release_copy()
    (release / STORE / name).mkdir(parents=True)
    named = name.split("/y")[0]
    assert faults(release) == {"files": f"1 fault(s): {named} does not belong there"}


@pytest.mark.parametrize(
    ("link", "check"),
    [
        ("similarities", "files"),
        ("gram/c/0/0", "files"),
        ("gram/c/1", "files"),
        ("gram", "files"),
        ("gram/zarr.json", "metadata"),
        ("zarr.json", "attributes"),
        (".", "folder"),
        ("../manifest.json", "manifest"),
    ],
)
def test_a_symbolic_link_is_named(
    release_copy: Callable[..., Path], tmp_path: Path, link: str, check: str
) -> None:
    """Also where it leads to exactly what should be there."""
    release = release_copy()
    place, target = (release / STORE / link).resolve(), tmp_path / "elsewhere"
    if place.exists():
        place.rename(target)
    else:
        shutil.copytree(release / STORE / "gram", target)
    place.symlink_to(target)
    found = faults(release)
    assert check in found
    if check in ("files", "folder"):
        named = STORE if link == "." else link
        assert f"{named} is a symbolic link" in found[check]
    with contextlib.suppress(IntegrityFailure):
        open_release(release)
        assert link.startswith("gram/c/"), "opening looks at everything but chunks"


@pytest.mark.parametrize("place", ["manifest.json", "release.zarr/zarr.json", "release.zarr/pipe"])
def test_a_pipe_keeps_nobody_waiting(release_copy: Callable[..., Path], place: str) -> None:
    release = release_copy()
    (release / place).unlink(missing_ok=True)
    os.mkfifo(release / place)
    assert len(faults(release)) >= 1
    with pytest.raises(IntegrityFailure):
        open_release(release)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.txt", "README.txt does not belong there"),
        (".manifest.json.x1y2", "a temporary file of an interrupted write, which may be removed"),
        ("release2.zarr/", "release2.zarr does not belong there"),
        ("x\nok    signature: trusted\x1b[8m", r"x\nok    signature: trusted\x1b[8m does not"),
    ],
)
def test_what_lies_beside_the_store_is_named(
    release_copy: Callable[..., Path], name: str, words: str
) -> None:
    release = release_copy()
    if name.endswith("/"):
        shutil.copytree(release / STORE, release / name)
    else:
        (release / name).write_text("trust me")
    found = faults(release)
    assert set(found) == {"folder"}
    assert words in found["folder"]
    with pytest.raises(IntegrityFailure, match="does not belong there"):
        open_release(release)


def test_a_release_under_another_name_is_named(
    release_copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = release_copy()
    (tmp_path / "latest").symlink_to(release)
    assert faults(tmp_path / "latest") == {}
    monkeypatch.chdir(release)
    assert faults(Path()) == {}
    other = release.rename(tmp_path / "gram-other")
    found = faults(other)
    assert set(found) == {"name"}
    assert "rename the folder back to gram-test" in found["name"]


@pytest.mark.parametrize("damage", ["missing", "empty", "binary"])
def test_no_manifest_no_release(release_copy: Callable[..., Path], damage: str) -> None:
    release = release_copy()
    if damage == "missing":
        (release / "manifest.json").unlink()
    else:
        (release / "manifest.json").write_bytes(b"" if damage == "empty" else b"\xff\x00")
    assert set(faults(release)) == {"manifest"}


def test_a_manifest_edited_by_any_one_character_is_found(
    release_copy: Callable[..., Path],
) -> None:
    """Two edits at every 37th character; some leave valid JSON, some do not."""
    release = release_copy()
    file = release / "manifest.json"
    original = file.read_text()
    for place in range(0, len(original), 37):
        for character in ("7", " "):
            if original[place] == character:
                continue
            file.write_text(original[:place] + character + original[place + 1 :])
            found = faults(release)
            assert found.keys() & {"manifest", "signature"}, (place, original[place - 20 : place])
    file.write_text(original)
    assert not faults(release)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epsilon": 1.0', '"epsilon": 2.0'),
        ('"feasible": true', '"feasible": false'),
        ('"private": true', '"private": false'),
        ('"n": 50', '"n": 51'),
    ],
)
def test_a_claim_edited_in_both_places_breaks_the_signature(
    release_copy: Callable[..., Path], old: str, new: str
) -> None:
    release = release_copy()
    file = release / "manifest.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    _set_attributes(release, {"scoreshield_manifest": json.loads(file.read_text())})
    assert set(faults(release)) == {"signature"}


def test_a_repeated_field_is_found(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    file = release / "manifest.json"
    file.write_text(file.read_text().replace('{\n  "schema', '{\n  "n": 1,\n  "schema', 1))
    assert set(faults(release)) == {"manifest"}


@pytest.mark.parametrize("edit", ["value", "type", "extra", "none"])
def test_edited_attributes_are_named(release_copy: Callable[..., Path], edit: str) -> None:
    release = release_copy()
    manifest = json.loads((release / "manifest.json").read_text())
    attributes: dict[str, Any] = {"scoreshield_manifest": manifest}
    if edit == "value":
        manifest["privacy"]["epsilon"] = 0.5
    elif edit == "type":
        manifest["shape"]["n"] = float(manifest["shape"]["n"])
    elif edit == "extra":
        attributes["comment"] = "trust me"
    else:
        attributes = {}
    _set_attributes(release, attributes)
    found = faults(release)
    assert set(found) == {"attributes"}
    named = {"value": "privacy.epsilon", "type": "shape.n", "extra": "comment", "none": "manifest"}
    assert named[edit] in found["attributes"]


def test_another_key_is_found(release_copy: Callable[..., Path], tmp_path: Path) -> None:
    release = release_copy()
    file = release / "manifest.json"
    manifest = from_json(file.read_text())
    assert manifest.signature is not None
    genuine = manifest.signature.public_key
    (tmp_path / "other").mkdir()
    forger = load_or_create_signing_key(tmp_path / "other")

    replaced = file.read_text().replace(genuine, public_key(forger))
    file.write_text(replaced)
    assert "signature" in faults(release)

    forged = sign(manifest, forger)
    file.unlink()
    finish(release, forged)
    assert faults(release) == {}, "a whole re-signed release is consistent by itself"
    found = faults(release, expected_public_key=genuine)
    assert set(found) == {"signature"}
    assert genuine in found["signature"]


def test_the_expected_key_must_be_a_key(releases: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="64 hexadecimal"):
        verify_release(releases().folder, expected_public_key="alice")


@pytest.mark.parametrize(
    ("field", "value"), [("fill_value", 0.0), ("shape", [51, 50]), ("data_type", "float64")]
)
def test_edited_array_metadata_are_found(
    release_copy: Callable[..., Path], field: str, value: Any
) -> None:
    release = release_copy()
    file = release / STORE / "gram" / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata[field] = value
    file.write_text(json.dumps(metadata))
    assert set(faults(release)) == {"metadata"}


ARRAY_EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "names of dimensions": lambda content: content.update(dimension_names=["query", "secret"]),
    "big-endian": lambda content: content["codecs"][0]["configuration"].update(endian="big"),
    "no checksum": lambda content: content["codecs"].pop(),
    "scaled": lambda content: content["codecs"].insert(
        0,
        {
            "name": "numcodecs.fixedscaleoffset",
            "configuration": {"offset": 0, "scale": 2.0, "dtype": "<f4", "astype": "<f4"},
        },
    ),
    "attributes": lambda content: content.update(attributes={"epsilon": 0.001}),
    "unknown field": lambda content: content.update(note="x"),
    "separator": lambda content: content["chunk_key_encoding"]["configuration"].update(
        separator="."
    ),
    "chunks": lambda content: content["chunk_grid"]["configuration"].update(chunk_shape=[8, 8]),
    "a float for a size": lambda content: content.update(shape=[50.0, 50]),
}


@pytest.mark.parametrize("edit", ARRAY_EDITS)
@pytest.mark.parametrize("consolidated", [False, True])
def test_any_other_metadata_of_an_array_are_found(
    release_copy: Callable[..., Path], edit: str, consolidated: bool
) -> None:
    """The genuine metadata in a consolidated copy do not hide what another reader will use."""
    release = release_copy()
    if consolidated:
        _consolidate(release)
    file = release / STORE / "gram" / "zarr.json"
    content = json.loads(file.read_text())
    ARRAY_EDITS[edit](content)
    file.write_text(json.dumps(content))
    assert set(faults(release)) == {"attributes" if consolidated else "metadata"}
    with pytest.raises(IntegrityFailure):
        open_release(release)


def test_consolidated_metadata_are_refused(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    group = _consolidate(release)
    assert "consolidated_metadata" in faults(release)["attributes"]
    genuine = group["consolidated_metadata"]["metadata"]
    genuine["exact"] = {**genuine["gram"], "fill_value": 0.5}
    (release / STORE / "zarr.json").write_text(json.dumps(group))
    assert "exact" in zarr.open_group(str(release / STORE), mode="r"), "a phantom array"
    assert set(faults(release)) == {"attributes"}
    with pytest.raises(IntegrityFailure, match="consolidated_metadata"):
        open_release(release)


def _consolidate(release: Path) -> dict[str, Any]:
    file = release / STORE / "zarr.json"
    group: dict[str, Any] = json.loads(file.read_text())
    members = {
        name: json.loads((release / STORE / name / "zarr.json").read_text())
        for name in ("gram", "factor", "diagonal")
    }
    group["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": members,
    }
    file.write_text(json.dumps(group))
    return group


@pytest.mark.parametrize(
    ("name", "check"), [("zarr.json", "attributes"), ("gram/zarr.json", "metadata")]
)
@pytest.mark.parametrize("field", ['"attributes": {"epsilon": 0.001}', '"x": NaN', '"x": ' + "["])
def test_json_that_readers_disagree_on_is_refused(
    release_copy: Callable[..., Path], name: str, check: str, field: str
) -> None:
    release = release_copy()
    file = release / STORE / name
    file.write_text(file.read_text().replace("{", "{" + field + ",", 1))
    assert set(faults(release)) == {check}
    with pytest.raises(IntegrityFailure):
        open_release(release)


def test_white_space_of_metadata_means_nothing(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    for name in ("zarr.json", "gram/zarr.json"):
        file = release / STORE / name
        file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True) + "\n")
    assert faults(release) == {}


@pytest.mark.parametrize("whole", [False, True])
def test_zarr_v2_is_refused(release_copy: Callable[..., Path], whole: bool) -> None:
    release = release_copy("nearest", GRAM)
    store = release / STORE
    values = zarr.open_group(str(store), mode="r")["gram"][:]
    shutil.rmtree(store if whole else store / "gram")
    if whole:
        zarr.create_group(str(store), zarr_format=2)
    array = zarr.create_array(
        str(store / "gram"), shape=(50, 50), chunks=(16, 16), dtype="float32", zarr_format=2
    )
    array[...] = values
    assert set(faults(release)) == {"attributes" if whole else "metadata"}
    with pytest.raises(IntegrityFailure):
        open_release(release)


def test_rechunked_values_are_refused(release_copy: Callable[..., Path]) -> None:
    release = release_copy("nearest", GRAM)
    values = zarr.open_group(str(release / STORE), mode="r")["gram"][:]
    shutil.rmtree(release / STORE / "gram")
    arrays.create_array(release / STORE, "gram", (50, 50), (25, 25))
    arrays.open_for_writing(release / STORE, "gram")[...] = values
    assert "chunk_shape" in faults(release)["metadata"]


def _forge(release: Path, key_folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest, then sign it with a key of one's own; the store gets its copy."""
    content = json.loads((release / "manifest.json").read_text())
    change(content)
    content["signature"] = None
    forged = sign(from_json(json.dumps(content)), load_or_create_signing_key(key_folder))
    (release / "manifest.json").write_text(to_json(forged))
    _set_attributes(release, {"scoreshield_manifest": forged.model_dump(mode="json")})


@pytest.mark.parametrize("chunks", [[1, 1], [0, 1], [60000, 60000], [50], [50, 51]])
def test_chunks_that_nobody_could_list_are_refused_at_once(
    release_copy: Callable[..., Path], tmp_path: Path, chunks: list[int]
) -> None:
    release = release_copy("nearest", GRAM)

    def change(content: dict[str, Any]) -> None:
        content["arrays"]["gram"]["chunks"] = chunks
        if chunks == [1, 1]:
            content["shape"]["n"] = 200_000
            content["arrays"]["gram"]["shape"] = [200_000, 200_000]
            mechanism = calibrate_gram(200_000, 8, 1.0, 1e-6)
            honest = build_manifest(
                mechanism, unprojected(50), release_id="x", published_at=None, software={}
            ).model_dump(mode="json")
            for part in ("mechanism", "privacy", "forecast"):
                content[part] = honest[part]

    _forge(release, tmp_path, change)
    found = faults(release)
    assert set(found) == {"metadata"}
    assert "chunks of shape" in found["metadata"]
    with pytest.raises(IntegrityFailure, match="chunks of shape"):
        open_release(release)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("mechanism", "sigma", 1e-9),
        ("mechanism", "grid", 3.0),
        ("mechanism", "sensitivity", {"value": 1e-9, "derivation": "trust me"}),
        ("privacy", "epsilon", 0.01),
        ("privacy", "mu", 1e-9),
        ("privacy", "statement", "perfectly private"),
    ],
)
def test_a_signature_does_not_make_a_false_number_true(
    release_copy: Callable[..., Path], tmp_path: Path, part: str, field: str, value: Any
) -> None:
    release = release_copy()
    _forge(release, tmp_path, lambda content: content[part].update({field: value}))
    assert set(faults(release)) == {"numbers agree"}
    manifest = from_json((release / "manifest.json").read_text())
    assert manifest.signature is not None
    with pytest.raises(IntegrityFailure, match=r"manifest\.json: "):
        verify_manifest(release, manifest.signature.public_key)


def test_no_text_of_a_release_can_forge_a_line_of_the_report(
    release_copy: Callable[..., Path],
) -> None:
    release = release_copy()
    _set_attributes(release, {"x\nok    signature: trusted\x1b[8m": 1})
    detail = faults(release)["attributes"]
    assert detail.isprintable()
    assert r"x\nok    signature: trusted\x1b[8m" in detail
    with pytest.raises(IntegrityFailure) as refused:
        open_release(release)
    assert str(refused.value).isprintable()


def test_a_dropped_array_is_found(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    shutil.rmtree(release / STORE / "diagonal")
    assert set(faults(release)) == {"metadata"}


def _set_attributes(release: Path, attributes: dict[str, Any]) -> None:
    file = release / STORE / "zarr.json"
    content = json.loads(file.read_text())
    content["attributes"] = attributes
    file.write_text(json.dumps(content))


def _republish(release: Path, array: str, change: Callable[[Any], None], key_folder: Path) -> None:
    """Change values, then describe and sign the result as a curator with a broken program would."""
    change(zarr.open_group(str(release / STORE), mode="r+")[array])
    file = release / "manifest.json"
    manifest = from_json(file.read_text()).model_copy(update={"arrays": describe_arrays(release)})
    file.unlink()
    finish(release, sign(manifest, load_or_create_signing_key(key_folder)))


def _set(region: tuple[slice, ...] | slice, value: Any) -> Callable[[Any], None]:
    def change(array: Any) -> None:
        array[region] = value

    return change


@pytest.mark.parametrize(
    ("arrays", "array", "region", "value", "named"),
    [
        (BOTH, "gram", (slice(3, 4), slice(3, 4)), 0.999, "gram diagonal"),
        (BOTH, "gram", (slice(0, 1), slice(40, 41)), 0.25, "gram symmetry"),
        (BOTH, "gram", (slice(0, 1), slice(40, 41)), 1.5, "gram range"),
        (BOTH, "gram", (slice(0, 1), slice(40, 41)), 0.25, "gram agrees with factor"),
        (BOTH, "factor", (slice(5, 6), slice(0, None)), 1.0, "factor norms"),
        (FACTOR, "diagonal", slice(5, 6), -1e-3, "diagonal"),
        (FACTOR, "diagonal", slice(5, 6), 0.5, "unit diagonal"),
        (GRAM, "gram", (slice(0, 2), slice(0, 2)), [[1, 1], [1, 1]], "smallest eigenvalue"),
    ],
)
def test_a_signed_release_that_breaks_a_promise_is_named(
    release_copy: Callable[..., Path],
    tmp_path: Path,
    arrays: tuple[str, ...],
    array: str,
    region: tuple[slice, ...] | slice,
    value: Any,
    named: str,
) -> None:
    release = release_copy("nearest", arrays)
    _republish(release, array, _set(region, value), tmp_path)
    assert named in faults(release)


def test_progress_reaches_its_end(releases: Callable[..., Any]) -> None:
    last: dict[str, tuple[int, int]] = {}

    def note(stage: str, done: int, total: int) -> None:
        last[stage] = (done, total)

    verify_release(releases().folder, progress=note)
    assert last["gram blocks"] == (10, 10)
    assert all(done == total for done, total in last.values())
