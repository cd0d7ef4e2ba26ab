"""Ledgers on both databases. PostgreSQL is a server of its own, started for the session."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.harness.books import Books, open_books


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """An empty schema of its own on the session's server."""
    engine = sql.create_engine(postgresql_server, poolclass=sql.pool.NullPool)
    schema = f"books_{os.urandom(6).hex()}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    yield f"{postgresql_server}&options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a ledger that does not exist yet, on each database in turn."""
    found = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(found, str)
    return found


@pytest.fixture
def books(url: str, tmp_path: Path) -> Books:
    return open_books(url, tmp_path / "private")


@pytest.fixture
def sqlite_books(sqlite_url: str, tmp_path: Path) -> Books:
    return open_books(sqlite_url, tmp_path / "private")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of a PostgreSQL server on a socket in a temporary folder, run by an unprivileged user."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    installed = shutil.which("pg_ctl")
    if not programs and installed is None:
        pytest.skip("PostgreSQL is not installed")
    binaries = (programs[-1] if programs else Path(str(installed))).parent
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    owner = _unprivileged()
    os.chown(folder, owner.pw_uid, owner.pw_gid)

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(binaries / program), "-D", str(folder / "data"), *arguments],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **({"user": owner.pw_uid, "group": owner.pw_gid} if os.getuid() == 0 else {}),
        )

    try:
        # No test kills the server, so nothing has to reach a disk.
        run("initdb", "-U", "curator", "-A", "trust", "-E", "UTF8", "--no-sync")
        run(
            "pg_ctl", "start", "-w", "-l", str(folder / "log"),
            "-o", f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off",
        )  # fmt: skip
        try:
            yield f"postgresql+psycopg://curator@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd:
    """This user, or, since PostgreSQL refuses to run as root, another one."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("there is no unprivileged user to run PostgreSQL")
