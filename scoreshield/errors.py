"""What can go wrong in the mechanism, as errors that a person can act on.

Every message says what was found, what was expected, and what to do.
"""

from __future__ import annotations


class ScoreShieldError(Exception):
    """Root of every error that ScoreShield raises on purpose."""


class ParameterError(ScoreShieldError, ValueError):
    """A parameter lies outside its domain, or a privacy quantity could not be certified."""


class InputRejected(ScoreShieldError, ValueError):
    """The data cannot be released as it is (wrong shape, type or values)."""
