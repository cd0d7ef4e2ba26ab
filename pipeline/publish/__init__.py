"""From a feasible matrix to a release: its arrays, its manifest last, and the signature.

No module here reaches ``gallery``, ``ingest`` or ``perturb``.
"""
