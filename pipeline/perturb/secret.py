"""The operator's secret: read from where a configuration says, and made into one release's key.

The secret is a master secret. A release key is an HMAC under it of the release's name, its lineage
and everything its binding covers, so one secret never gives one key to two matrices, and the same
release always gets the same key: a run whose private folder was lost goes on with the same bits. An
error never quotes what was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import signal
import subprocess
import threading
from pathlib import Path

from pipeline.config.sections import SecretSettings
from pipeline.errors import ConfigurationError
from pipeline.storage.private_file import read_private

_LABEL = b"scoreshield/1 release key"
_SHORTEST, _LONGEST = 32, 4096
_FEWEST_VALUES = 8
"""Distinct bytes: 32 random ones, also as hexadecimal digits, have more but once in 10^15."""
_REMEDY = "make one with 'openssl rand -hex 32'"


def derive_key(secret: bytes, lineage: str, bound_to: bytes) -> bytes:
    """HMAC-SHA-256 of a lineage and of what the key is bound to, under the operator's secret.

    Parameters
    ----------
    bound_to : :func:`pipeline.perturb.keyfile.bound_message` of the release: its name, the
        gallery's content digest and every setting that shapes the noise or the values
    """
    message = b"\0".join((_LABEL, lineage.encode(), hashlib.sha256(bound_to).digest()))
    return hmac.new(secret, message, hashlib.sha256).digest()


def unsafe_key(seed: int, bound_to: bytes) -> bytes:
    """The key of test mode, which anybody can recompute: a hash of a seed and of ``bound_to``."""
    message = f"scoreshield/1 unsafe seed {seed}\0".encode() + bound_to
    return hashlib.sha256(message).digest()


def read_secret(source: SecretSettings) -> bytes:
    """The operator's secret, without the line end that editors and commands append.

    Raises
    ------
    ConfigurationError
        It can't be read, others can read it, or it is too short or too regular to be a secret.
    """
    if source.command is not None:
        where = f"secret.command {source.command[0]!r}"
        content = _from_command(source.command, source.timeout)
    else:
        path, where = _named_file(source)
        content = _from_file(path, where)
    content = content.rstrip(b"\r\n")
    if not _SHORTEST <= len(content) <= _LONGEST:
        raise ConfigurationError(
            f"{where}: expected a secret of {_SHORTEST} to {_LONGEST} bytes, found "
            f"{len(content) if len(content) <= _LONGEST else 'more'}; {_REMEDY}"
        )
    if len(set(content)) < _FEWEST_VALUES:
        raise ConfigurationError(
            f"{where}: found only {len(set(content))} different bytes, which is a placeholder and "
            f"no secret; {_REMEDY}"
        )
    return content


def _named_file(source: SecretSettings) -> tuple[Path, str]:
    if source.file is not None:
        return source.file, f"secret.file {source.file}"
    name = str(source.environment)
    value = os.environ.get(name, "")
    if not value:
        raise ConfigurationError(
            f"secret.environment: the variable {name} is not set; it must hold the path of the "
            "secret's file"
        )
    # The value is not shown: whoever puts the secret itself there must not find it in a log.
    return Path(value), f"secret.environment {name}"


def _from_file(path: Path, where: str) -> bytes:
    file = None
    # No error leaves: it would quote a path that may be the secret.
    with contextlib.suppress(OSError, ValueError):
        file = read_private(path, _LONGEST + 2, follow_links=True)
    if file is None:
        raise ConfigurationError(
            f"{where}: the file can't be opened; expected the path of a plain file that its owner "
            "alone can read"
        )
    if not file.plain:
        raise ConfigurationError(f"{where}: expected a plain file, found another kind of file")
    if file.open_to_others:
        raise ConfigurationError(
            f"{where}: the file has mode {file.mode:04o}, expected 0600: others may have read it. "
            "If nobody did, run chmod 600 on it; if in doubt, use a new secret"
        )
    if file.owner not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{where}: the file belongs to user {file.owner}, expected the user that runs "
            f"this ({os.geteuid()}) or root"
        )
    return file.content


def _from_command(command: tuple[str, ...], seconds: float) -> bytes:
    """What a command prints. Its errors are not shown: they may quote what it prints."""
    name = f"secret.command {command[0]!r}"
    try:
        process = subprocess.Popen(  # noqa: S603 (an argument list of the curator's own, no shell)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{name}: can't be run ({type(error).__name__}); expected a program and its arguments, "
            "as a list"
        ) from None
    late = threading.Event()

    def end() -> None:
        late.set()
        _end_group(process)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        content = process.stdout.read(_LONGEST + 2) if process.stdout is not None else b""
        if len(content) <= _LONGEST + 1:
            # Not reaped yet: its process group keeps its number until the group is ended.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        timer.cancel()
        _end_group(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if late.is_set():
        raise ConfigurationError(
            f"{name}: printed no secret within {seconds:g} s; raise secret.timeout, or see whether "
            "it waits for an answer"
        )
    if process.returncode != 0 and len(content) <= _LONGEST + 1:
        raise ConfigurationError(
            f"{name}: ended with exit code {process.returncode}; run it by hand to see why"
        )
    return content


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and whatever it started, before the command is reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
