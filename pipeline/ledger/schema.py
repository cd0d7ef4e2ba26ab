"""The ledger's two tables, the same in every database.

Beside the hash chain, the tables themselves refuse a second event of a kind, a gallery in two
lineages and a second ending; triggers (each database has its own form) refuse every change.
"""

from __future__ import annotations

import sqlalchemy as sql

FORMAT = "scoreshield-ledger/2"

_ENDINGS = sql.text("kind IN ('committed', 'abandoned')")
_VERSIONS = sql.text("kind = 'version'")

metadata = sql.MetaData()
identity = sql.Table(
    "ledger",
    metadata,
    sql.Column("format", sql.String(32), primary_key=True),
    sql.Column("secret", sql.String(64), nullable=False),
)
journal = sql.Table(
    "journal",
    metadata,
    sql.Column("sequence", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("lineage", sql.String, nullable=False),
    sql.Column("kind", sql.String(16), nullable=False),
    sql.Column("subject", sql.String, nullable=False),
    sql.Column("body", sql.Text, nullable=False),
    sql.Column("recorded_at", sql.String(32), nullable=False),
    sql.Column("hash", sql.String(64), nullable=False),
    sql.UniqueConstraint("lineage", "kind", "subject", name="one_event_of_a_kind"),
    sql.CheckConstraint(
        "kind IN ('opened', 'version', 'reserved', 'key', 'committed', 'abandoned')",
        name="known_kind",
    ),
    sql.Index(
        "one_lineage_a_content",
        "subject",
        unique=True,
        sqlite_where=_VERSIONS,
        postgresql_where=_VERSIONS,
    ),
    sql.Index(
        "one_ending_a_release",
        "lineage",
        "subject",
        unique=True,
        sqlite_where=_ENDINGS,
        postgresql_where=_ENDINGS,
    ),
)
TABLES = (identity.name, journal.name)
