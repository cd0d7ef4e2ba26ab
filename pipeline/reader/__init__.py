"""Opening, checking and showing a published release.

No module here reaches ``gallery``, ``ingest`` or ``perturb``.
"""
