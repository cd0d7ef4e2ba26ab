"""The operator's secret: where it is read from, what is refused, and what is derived from it."""

from __future__ import annotations

import base64
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.model import Config
from pipeline.config.sections import SecretSettings
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError
from pipeline.perturb.keyfile import bound_message, check_binding, read_key, store_key
from pipeline.perturb.secret import derive_key, read_secret, unsafe_key
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import ScoreRange

SECRET = bytes(range(100, 132)).hex().encode()
DIGEST = bytes(range(32))
LINEAGE = "ab" * 16
MECHANISM = calibrate_gram(50, 8, 1.0, 1e-6)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "master.secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    return path


def printing(text: bytes, then: str = "") -> tuple[str, ...]:
    script = f"import sys; sys.stdout.buffer.write({text!r}); sys.stdout.flush(); {then}"
    return (sys.executable, "-c", script)


class TestWhereItIsRead:
    def test_the_same_secret_from_every_place(
        self, secret_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MASTER_SECRET_FILE", str(secret_file))
        for source in (
            SecretSettings(file=secret_file),
            SecretSettings(environment="MASTER_SECRET_FILE"),
            SecretSettings(command=printing(SECRET + b"\n")),
            SecretSettings(command=printing(SECRET)),
        ):
            assert read_secret(source) == SECRET

    def test_raw_bytes_are_a_secret_too(self, secret_file: Path) -> None:
        secret_file.write_bytes(bytes(range(200, 232)))
        assert read_secret(SecretSettings(file=secret_file)) == bytes(range(200, 232))

    def test_a_link_to_it_is_followed(self, secret_file: Path, tmp_path: Path) -> None:
        """Kubernetes mounts secrets as links."""
        (tmp_path / "link").symlink_to(secret_file)
        assert read_secret(SecretSettings(file=tmp_path / "link")) == SECRET

    def test_a_command_gets_its_arguments_without_a_shell(self, tmp_path: Path) -> None:
        script = "import sys; print(sys.argv[1])"
        argument = "$(touch made)" + "0123456789abcdef" * 2
        source = SecretSettings(command=(sys.executable, "-c", script, argument))
        assert read_secret(source) == argument.encode()
        assert not Path("made").exists()

    def test_a_command_cannot_ask(self) -> None:
        script = f"import sys; assert sys.stdin.read() == ''; print({SECRET.decode()!r})"
        assert read_secret(SecretSettings(command=(sys.executable, "-c", script))) == SECRET


class TestWhatIsRefused:
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
    def test_a_file_that_others_can_reach(self, secret_file: Path, mode: int) -> None:
        secret_file.chmod(mode)
        with pytest.raises(ConfigurationError, match=f"mode {mode:04o}, expected 0600.*chmod 600"):
            read_secret(SecretSettings(file=secret_file))

    def test_a_file_of_another_user(
        self, secret_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = secret_file.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 4321)
        if owner == 0:
            os.chown(secret_file, 1234, -1)
        with pytest.raises(ConfigurationError, match="belongs to user"):
            read_secret(SecretSettings(file=secret_file))

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "of 32 to 4096 bytes, found 0"),
            (SECRET[:31], "found 31; make one with 'openssl rand -hex 32'"),
            (SECRET[:31] + b"\n\n\n", "found 31"),
            (SECRET * 65, "found more"),
            (b"0" * 64, "only 1 different bytes, which is a placeholder"),
            (b"changeme" * 8, "only 7 different bytes"),
        ],
    )
    def test_what_is_no_secret(self, secret_file: Path, content: bytes, said: str) -> None:
        secret_file.write_bytes(content)
        for source in (SecretSettings(file=secret_file), SecretSettings(command=printing(content))):
            with pytest.raises(ConfigurationError, match=said):
                read_secret(source)

    def test_a_missing_file_a_folder_and_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe", mode=0o600)
        for name in ("missing", "pipe", "."):
            with pytest.raises(ConfigurationError, match="plain file"):
                read_secret(SecretSettings(file=tmp_path / name))

    @pytest.mark.parametrize("value", [None, "", SECRET.decode()])
    def test_a_variable_that_names_no_file_and_its_value_stays_unsaid(
        self, monkeypatch: pytest.MonkeyPatch, value: str | None
    ) -> None:
        monkeypatch.delenv("MASTER_SECRET_FILE", raising=False)
        if value is not None:
            monkeypatch.setenv("MASTER_SECRET_FILE", value)
        with pytest.raises(ConfigurationError, match="MASTER_SECRET_FILE") as refused:
            read_secret(SecretSettings(environment="MASTER_SECRET_FILE"))
        assert_unsaid(refused.value)

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            (("no-such-program-anywhere",), "can't be run"),
            (("",), "can't be run"),
            (printing(SECRET, "sys.exit(3)"), "exit code 3; run it by hand"),
            (printing(SECRET, "sys.stderr.write('x' * 300000); sys.exit(9)"), "exit code 9"),
        ],
    )
    def test_a_command_that_fails(self, command: tuple[str, ...], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said) as refused:
            read_secret(SecretSettings(command=command))
        assert_unsaid(refused.value)

    def test_a_command_that_takes_too_long_is_ended_with_what_it_started(
        self, tmp_path: Path
    ) -> None:
        mark = tmp_path / "still-there"
        started = "import sys, time; time.sleep(2); open(sys.argv[1], 'w')"
        script = (
            "import subprocess, sys, time; "
            "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(60)"
        )
        command = (sys.executable, "-c", script, started, str(mark))
        source = SecretSettings(command=command, timeout=0.7)
        begun = time.monotonic()
        with pytest.raises(ConfigurationError, match="printed no secret within"):
            read_secret(source)
        assert time.monotonic() - begun < 20
        time.sleep(2.2)
        assert not mark.exists()

    def test_a_command_that_never_stops_printing(self) -> None:
        script = "import sys\nwhile True: sys.stdout.write('abcdefghijkl' * 1000)"
        with pytest.raises(ConfigurationError, match="found more"):
            read_secret(SecretSettings(command=(sys.executable, "-c", script)))


def assert_unsaid(error: BaseException) -> None:
    """No error shows the secret, nor does what hangs on it."""
    shown = "".join(traceback.format_exception(error))
    for part in (error, error.__cause__, error.__context__):
        shown += repr((getattr(part, "args", None), getattr(part, "filename", None)))
    for form in (SECRET.decode(), base64.b64encode(SECRET).decode()):
        assert form[:20] not in shown


def configuration(folder: Path, **changes: Any) -> Config:
    settings = {
        "gallery": "faces.npy",
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 2.0, "delta": 1e-5},
        **changes,
    }
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


class TestItsConfiguration:
    def test_none_is_named_by_default(self, tmp_path: Path) -> None:
        assert not configuration(tmp_path).secret.named

    def test_a_file_is_relative_to_the_configuration(self, tmp_path: Path) -> None:
        secret = configuration(tmp_path, secret={"file": "keys/master"}).secret
        assert secret.named
        assert secret.file == tmp_path / "keys" / "master"

    @pytest.mark.parametrize(
        ("secret", "said"),
        [
            ({"file": "a", "environment": "B"}, "secret: expected one of file, environment and"),
            ({"command": ["a"], "environment": "B"}, "found environment and command"),
            ({"command": "vault read"}, "secret.command"),
            ({"command": []}, "secret.command"),
            ({"environment": "A B"}, "secret.environment"),
            ({"timeout": 0}, "secret.timeout"),
            ({"fil": "a"}, "secret.fil: unknown key; did you mean 'file'"),
            ({"file": "releases/master"}, "outside the published folder"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, secret: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            configuration(tmp_path, secret=secret)


class TestOneKeyOneMatrix:
    OTHER: tuple[tuple[str, bytes, str, Mechanism], ...] = (
        ("cd" * 16, DIGEST, "gram-a", MECHANISM),
        (LINEAGE, bytes(32), "gram-a", MECHANISM),
        (LINEAGE, DIGEST, "gram-b", MECHANISM),
        (LINEAGE, DIGEST, "gram-a", calibrate_gram(50, 8, 1.1, 1e-6)),
        (LINEAGE, DIGEST, "gram-a", replace(MECHANISM, score_range=ScoreRange(0, 1))),
        (LINEAGE, DIGEST, "gram-a", replace(MECHANISM, grid_exponent=-3)),
        (LINEAGE, DIGEST, "gram-a", replace(MECHANISM, n=51)),
    )

    def test_whatever_differs_gives_another_key(self) -> None:
        releases = ((LINEAGE, DIGEST, "gram-a", MECHANISM), *self.OTHER)
        keys = {
            derive_key(secret, lineage, bound_message(digest, name, mechanism))
            for secret in (SECRET, SECRET[::-1])
            for lineage, digest, name, mechanism in releases
        }
        assert len(keys) == 2 * len(releases)
        assert {len(key) for key in keys} == {32}

    def test_a_derived_key_keeps_its_binding(self, tmp_path: Path) -> None:
        key = derive_key(SECRET, LINEAGE, bound_message(DIGEST, "gram-a", MECHANISM))
        path = tmp_path / "release.key"
        store_key(path, key, DIGEST, "gram-a", MECHANISM)
        assert read_key(path) == key
        assert path.stat().st_mode & 0o777 == 0o600
        check_binding(path, DIGEST, "gram-a", MECHANISM)
        assert SECRET not in path.read_bytes()

    def test_the_derivation_never_changes(self) -> None:
        """A run that is resumed with a later version must get the same key."""
        assert derive_key(SECRET, LINEAGE, b"bound to").hex() == (
            "218633332daad404c2da90fa44b11221d312322a0088fe7b038d1b68bf6027f9"
        )
        assert unsafe_key(7, b"bound to").hex() == (
            "c8966aca583d29d29c37e1f0b2b3e1c168a2c2c139be1d95b58777a38767c440"
        )

    @given(
        st.tuples(st.binary(max_size=40), st.binary(max_size=40)),
        st.tuples(st.sampled_from(["", "a", "ab"]), st.sampled_from(["", "a", "ab"])),
    )
    def test_no_two_messages_run_together(
        self, bound_to: tuple[bytes, bytes], lineages: tuple[str, str]
    ) -> None:
        same = (bound_to[0], lineages[0]) == (bound_to[1], lineages[1])
        keys = {
            derive_key(SECRET, lineage, bound)
            for bound, lineage in zip(bound_to, lineages, strict=True)
        }
        assert (len(keys) == 1) == same
