"""What is known of a projection method: everything that a caller or a plan asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scoreshield.projection.blockwise.problem import BlockwiseProblem
from scoreshield.projection.foretold import NoisySpectrum, SolverWork
from scoreshield.projection.operator import SymmetricOperator
from scoreshield.projection.request import ProjectionRequest
from scoreshield.projection.result import Projection
from scoreshield.projection.solution import Solution


@dataclass(frozen=True)
class BlockwiseForm:
    """A method by products alone.

    Attributes
    ----------
    solve : the projection, wherever the panels of the problem are kept
    width : upper estimate of the columns of a panel; no more than n are planned
    work : what the solver typically does
    states : dataclasses that its checkpoints are made of
    takes_rank : whether it takes a given rank; otherwise it finds its own
    """

    solve: Callable[[BlockwiseProblem[Any]], Solution[Any]]
    width: Callable[[NoisySpectrum], float]
    work: Callable[[NoisySpectrum], SolverWork]
    states: tuple[type, ...]
    takes_rank: bool = False


@dataclass(frozen=True)
class ProjectionMethod:
    """One line of the registry.

    Attributes
    ----------
    name : what configurations call it
    summary : one line for a person
    dense : the projection of a unit-diagonal operator whose matrix fits into memory
    matrices_at_peak : peak memory of the dense form on top of the caller's array, in units of 8n²
        bytes, measured; the test of memory keeps it true
    eigendecompositions : of the whole matrix that the dense form typically takes
        (benchmarks/README.md)
    blockwise : the form by products alone; without one the dense form is taken at every size
    makes_factor : whether the result has a factor; without one it is no projection, and what is
        released is the noisy matrix clipped to [−1, 1]
    """

    name: str
    summary: str
    dense: Callable[[SymmetricOperator, ProjectionRequest], Projection]
    matrices_at_peak: float
    eigendecompositions: int
    blockwise: BlockwiseForm | None = None
    makes_factor: bool = True

    def memory_bytes(self, n: int) -> int:
        """Peak memory of the dense form on top of the caller's array, in bytes."""
        return int(self.matrices_at_peak * 8 * n * n)
