"""What each regime is, in numbers and in words: one record a regime, in one registry.

Public facts alone, so that a reader of releases may know them. How a regime is run is a record of
the same name in :mod:`pipeline.run.regimes`.
"""
