"""The documents say what the code does: commands, keys and examples in them are checked or run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import reference
from pipeline.config.yaml import load_config
from pipeline.errors import EXIT_CODES
from tests.harness.command import end_of, run_command, start_command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def shell_commands() -> list[str]:
    return [line for block in fenced("sh") for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files: what a stranger's clone holds."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_readme_commands_run_in_their_order_and_its_examples_too(clone: Path) -> None:
    """The release by the installed command, on worker processes; the others in this process."""
    ran = []
    for line in shell_commands():
        for command in line.split(" && "):
            if command.startswith(("pip install ", "pytest")):
                continue
            program, *words = command.split()
            assert program == "scoreshield", f"unexpected command in README: {command}"
            if words[0] == "release":
                ended = end_of(start_command(clone, *words), seconds=280)
            else:
                ended = run_command(clone, *words)
            assert ended.returncode == 0, f"{command}\n{ended.stderr}"
            ran.append(command)
    assert "scoreshield release configs/quickstart.yaml" in ran
    for example in fenced("python"):
        result = subprocess.run(
            [sys.executable, "-c", example], cwd=clone, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{example}\n{result.stderr}"
        assert result.stdout


def test_the_readme_opens_with_its_two_commands() -> None:
    commands = shell_commands()
    assert commands[0] == "pip install -e . && scoreshield release configs/quickstart.yaml"
    assert "pip install -e '.[test]' && pytest" in commands
    assert README.index(commands[0]) < 1500


@pytest.mark.slow
def test_the_readme_install_command_works_in_a_new_environment(clone: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    activated = f". {tmp_path / 'venv'}/bin/activate && {shell_commands()[0]}"
    subprocess.run(["bash", "-euc", activated], cwd=clone, check=True)
    assert (clone / "releases" / "digits" / "manifest.json").exists()


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        path
        for folder in ("docs", "benchmarks", "deploy")
        for path in ROOT.glob(f"{folder}/**/*.md")
    ),
]
NAMED_FILE = re.compile(
    r"(?<![\w/.-])((?:scoreshield|pipeline|tests|benchmarks|configs|deploy|docs)/\w[\w./-]*)((?:::\w+)*)"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_names_and_links_to_is_there(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for name, parts in NAMED_FILE.findall(text):
        named = ROOT / name.rstrip(".")
        assert named.exists(), name
        for part in filter(None, parts.split("::")):
            assert f" {part}(" in named.read_text() or f" {part}:" in named.read_text(), part


def test_what_is_written_from_the_code_is_up_to_date() -> None:
    for path, text in reference.expected().items():
        assert path.read_text() == text, f"run 'python docs/reference.py': {path.name} is old"


def test_every_command_and_every_section_of_a_configuration_has_its_place() -> None:
    for document, kind, names in [
        ("commands.md", "command", reference.COMMANDS),
        ("configuration.md", "keys", reference.SECTIONS),
    ]:
        text = (ROOT / "docs" / document).read_text()
        for name in names:
            assert text.count(f"<!-- {kind} {name} -->") == 1, f"{document}: {name}"


def test_every_exit_code_is_documented() -> None:
    for code in {0, *EXIT_CODES.values()}:
        assert f"| {code} |" in (ROOT / "docs" / "commands.md").read_text()
        assert f"{code} " in README


def test_every_configuration_in_the_repository_is_valid() -> None:
    found = sorted(ROOT.glob("configs/*.yaml"))
    assert found
    for path in found:
        load_config(path)


def test_the_changelog_has_an_unreleased_section() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
