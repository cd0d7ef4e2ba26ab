"""Projection of a noisy Gram matrix onto the matrices that cosines can have.

``methods`` holds one file a method (``aap``, ``nearest``, ``shrink``, ``auto``, ``none``), which
ends in its record; ``registry`` lists them. Solvers stand in ``dense``, which has the whole matrix
and its spectrum, and in ``blockwise``, which has products with it alone; both are written against
the operator protocol of ``operator``. ``request`` is what a caller asks, ``result``, ``solution``
and ``certificate`` say what came out, ``foretold`` what it will take. Nothing here reads a gallery:
projection is post-processing. Imports NumPy, SciPy and the errors of ``scoreshield``, nothing else.
"""

from __future__ import annotations

from scoreshield.projection.operator import DenseOperator, SymmetricOperator
from scoreshield.projection.registry import METHODS, project
from scoreshield.projection.result import Projection

__all__ = ["METHODS", "DenseOperator", "Projection", "SymmetricOperator", "project"]
