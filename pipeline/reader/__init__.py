"""Opening, checking and describing a published release.

``open`` reads it lazily by way of ``lazy_matrix``; ``verify`` checks all of it, with ``stored`` for
the files, ``values`` and ``feasibility`` for what is in them; ``manifest_file`` is the manifest as
it lies in a release, ``description`` says in plain words what it tells. May import ``storage`` and
``publish``; no module here reaches ``gallery``, ``ingest`` or ``perturb``.
"""
