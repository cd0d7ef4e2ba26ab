"""The house: which room may import which, no circle, and files and functions of one idea.

The tables are in reading order, as in docs/architecture.md: a room imports only rooms above it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "scoreshield": (
        "arithmetic",
        "privacy",
        "noise",
        "mechanisms",
        "projection",
        "utility",
        "regimes",
        "manifest",
        "audit",
    ),
    "pipeline": (
        "plan",
        "storage",
        "config",
        "ledger",
        "cluster",
        "gallery",
        "ingest",
        "perturb",
        "project",
        "publish",
        "reader",
        "run",
        "forecast",
        "cli",
    ),
}
FACE = {
    "scoreshield": {"__init__", "inmemory", "prepared"},
    "pipeline": {"__init__"},
}
"""Files of a root that hand its rooms on, and so stand after all of them."""

LONGEST_FILE, LONGEST_FUNCTION = 450, 60

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ROOMS
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imported_by(module: str) -> Iterator[str]:
    """Modules of the two packages that a module imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            found = module_of(name)
            if found is not None and found != module:
                yield found


def module_of(name: str) -> str | None:
    """The file that a dotted name stands in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for candidate in (parts[:length], [*parts[:length], "__init__"]):
            if ".".join(candidate) in FILES:
                return ".".join(candidate)
    return None


def floor(module: str) -> int:
    """How far down the table a module stands: the root first, its face last."""
    package, *rest = module.split(".")
    rooms = ROOMS[package]
    if rest[0] in rooms:
        return 1 + rooms.index(rest[0])
    return 1 + len(rooms) if rest[0] in FACE[package] else 0


@pytest.mark.parametrize("module", FILES)
def test_a_room_imports_only_rooms_above_it(module: str) -> None:
    package = module.split(".")[0]
    below = [
        name
        for name in imported_by(module)
        if name.split(".")[0] == package and floor(name) > floor(module)
    ]
    assert not below


def test_every_folder_is_a_room_of_the_table_and_says_what_it_holds() -> None:
    for package, rooms in ROOMS.items():
        folders = {
            path.name
            for path in (ROOT / package).iterdir()
            if path.is_dir() and any(path.glob("*.py"))
        }
        assert folders == set(rooms)
        for face in (ROOT / package).rglob("__init__.py"):
            assert ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))), face


def test_no_module_imports_itself_in_a_circle() -> None:
    """Also not by an import inside a function, which hides a circle and does not open it."""
    graph = {module: set(imported_by(module)) for module in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_mechanism_never_imports_the_pipeline() -> None:
    for module in FILES:
        if module.startswith("scoreshield"):
            assert not [name for name in imported_by(module) if name.startswith("pipeline")]


@pytest.mark.parametrize("module", FILES)
def test_files_and_functions_are_of_one_idea(module: str) -> None:
    text = FILES[module].read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE
    longest = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not longest
