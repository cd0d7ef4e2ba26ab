"""The durable record of the privacy budget spent on each gallery lineage.

One append-only journal in a database says everything: an account is opened with a budget, versions
of the gallery join it, releases are reserved before their first noise bit and then committed or
abandoned. State is never stored, only replayed. Rows are chained by their hashes, and the newest
hash is kept outside the database as well, so that a row that was changed and a database that was
set back are both noticed and refused.

``journal`` holds the rows and their chain, ``head`` what is kept outside, ``account`` what rows add
up to, ``database`` where they are stored, in one of two ``kinds`` (``sqlite``, ``postgresql``),
``ledger`` the transactions, ``verify`` the check of all of it. May import ``storage``.
"""

from __future__ import annotations

from pipeline.ledger.account import Account as Account
from pipeline.ledger.account import Budget as Budget
from pipeline.ledger.account import Entry as Entry
from pipeline.ledger.account import OverspendRefused as OverspendRefused
from pipeline.ledger.account import SpendForecast as SpendForecast
from pipeline.ledger.account import SpendRequest as SpendRequest
from pipeline.ledger.account import State as State
from pipeline.ledger.account import forecast_spend as forecast_spend
from pipeline.ledger.ledger import Ledger as Ledger
