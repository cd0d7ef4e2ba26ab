"""Projection of a noisy Gram matrix onto the matrices that cosines can have.

One file a method (``aap``, ``nearest``, ``shrink``, ``auto``, ``none``), written against the
operator protocol of ``operator``; ``choose`` is the registry, ``result`` and ``certificate`` say
what came out. The ``*_blockwise`` files hold the forms that need products only, written against the
panels of ``panels`` and the eigensolver of ``subspace``; ``solution`` is what they return. Nothing
here reads a gallery: projection is post-processing. Imports NumPy, SciPy and the errors of
``scoreshield``, nothing else.
"""

from __future__ import annotations

from scoreshield.projection.choose import METHODS, project
from scoreshield.projection.operator import DenseOperator, SymmetricOperator
from scoreshield.projection.result import Projection

__all__ = ["METHODS", "DenseOperator", "Projection", "SymmetricOperator", "project"]
