"""From noisy blocks to a feasible matrix, in one task or blockwise.

Reads noisy blocks alone: no module here reaches ``gallery``, ``ingest`` or ``perturb``.
"""
