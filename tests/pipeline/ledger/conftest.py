"""Ledgers on both databases. PostgreSQL is a server of its own, started for the session."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sql

from pipeline.ledger import Budget, Ledger, Request
from pipeline.ledger.database import Database, database_for
from scoreshield.privacy.calibration import noise_multiplier

BUDGET = Budget(20.0, 1e-5)
LINEAGE = "0123456789abcdef0123456789abcdef"
DIGEST = hashlib.sha256(b"gallery").digest()


def request(
    epsilon: float, delta: float = 1e-5, sensitivity: float = 10.0, adjacency: str = "record"
) -> Request:
    """A request calibrated the way the mechanism does it."""
    sigma = noise_multiplier(epsilon, delta) * sensitivity * (1 + 2.0**-50)
    return Request(epsilon, delta, sensitivity, sigma, adjacency)


@dataclass(frozen=True)
class Books:
    """A ledger and the private folder that keeps its head, with what an attacker can do to it."""

    url: str
    private: Path

    @property
    def database(self) -> Database:
        """The database below the ledger."""
        return database_for(self.url)

    @property
    def head_file(self) -> Path:
        """The one head of this private folder."""
        (file,) = self.private.glob("ledger-head-*.json")
        return file

    def open(self) -> Ledger:
        """The ledger as a release opens it."""
        return Ledger.open(self.url, self.private)

    def rows(self) -> list[tuple[object, ...]]:
        """The journal as it is stored."""
        with self.database.reading() as connection:
            found = connection.exec_driver_sql("SELECT * FROM journal ORDER BY sequence")
            return [tuple(row) for row in found]

    def rewrite(self, *statements: str) -> None:
        """Change rows as only someone who first removes the triggers can."""
        with self.database.writing() as connection:
            if self.url.startswith("sqlite"):
                named = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                for trigger in connection.exec_driver_sql(named).scalars().all():
                    connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
            else:
                for table in ("ledger", "journal"):
                    connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            for statement in statements:
                connection.exec_driver_sql(statement)


def open_books(url: str, private: Path) -> Books:
    """A new ledger with one account."""
    Ledger.create(url, private).open_account(LINEAGE, BUDGET, DIGEST)
    return Books(url, private)


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


@pytest.fixture(scope="session")
def toolbox() -> type:
    """The builders of this module, for tests that make their own."""

    class Toolbox:
        request = staticmethod(request)
        open_books = staticmethod(open_books)
        books = Books
        budget, lineage, digest = BUDGET, LINEAGE, DIGEST

    return Toolbox
