"""What tests of several rooms share, plainly imported: ``from tests.harness.curator import N``.

Fixtures stay in the ``conftest.py`` of the folder that needs them.
"""
