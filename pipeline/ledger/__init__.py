"""The durable record of the privacy budget spent on each gallery lineage.

One append-only journal in a database says everything: an account is opened with a budget, versions
of the gallery join it, releases are reserved before their first noise bit and then committed or
abandoned. State is never stored, only replayed. Rows are chained by their hashes, and the newest
hash is kept outside the database as well, so that a row that was changed and a database that was
set back are both noticed and refused.

``journal`` holds the rows and their chain, ``head`` what is kept outside, ``account`` what rows add
up to, ``database`` with ``sqlite`` and ``postgresql`` where they are stored, ``ledger`` the
transactions, ``verify`` the check of all of it.
"""

from __future__ import annotations

from pipeline.ledger.account import Account as Account
from pipeline.ledger.account import Budget as Budget
from pipeline.ledger.account import Entry as Entry
from pipeline.ledger.account import Forecast as Forecast
from pipeline.ledger.account import OverspendRefused as OverspendRefused
from pipeline.ledger.account import Request as Request
from pipeline.ledger.account import State as State
from pipeline.ledger.account import forecast as forecast
from pipeline.ledger.ledger import Ledger as Ledger
