"""Nanoseconds a noise sample, in one thread, with NumPy's standard_normal as the yardstick.

Both fill cache-sized pieces: the sampler works through a tile in pieces of 32 × 1024, and NumPy
fills one buffer of that size again and again. Repetitions alternate between the two, so that a busy
machine slows both; time is CPU time of the thread; medians are reported. Compare the ratio between
machines, not the nanoseconds.

    python benchmarks/sampler.py
    python benchmarks/sampler.py --ratio 4194304 --json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
from command_line import JSON, parser

from scoreshield.noise import sampler as noise

PIECE = 32 * noise.TILE
WHOLE = slice(0, noise.TILE)


def main() -> None:
    arguments = parser(
        __doc__,
        tiles=(8, "tiles a repetition"),
        repetitions=(11, "of both sides in turn"),
        ratio=(1.5 * 2**20, "sigma over grid"),
        json=JSON,
    ).parse_args()
    key = noise.tile_key(bytes(noise.KEY_BYTES), "benchmark", "gram", 0, 1)
    generator, buffer = np.random.default_rng(0), np.empty(PIECE)

    tiles: int = arguments.tiles

    def sample() -> int:
        for _ in range(tiles):
            noise.tile_noise(key, arguments.ratio, WHOLE, WHOLE)
        return tiles * noise.TILE**2

    def yardstick() -> int:
        pieces = tiles * noise.TILE**2 // PIECE
        for _ in range(pieces):
            generator.standard_normal(out=buffer)
        return pieces * PIECE

    sample()
    yardstick()
    runs = [
        (nanoseconds_each(sample), nanoseconds_each(yardstick))
        for _ in range(arguments.repetitions)
    ]
    ours, theirs = (statistics.median(run[which] for run in runs) for which in (0, 1))
    report(arguments, ours, theirs, statistics.median(run[0] / run[1] for run in runs), runs)


def nanoseconds_each(fill: Callable[[], int]) -> float:
    """CPU time of one call of ``fill`` divided by the samples it says it drew."""
    start = time.thread_time()
    count = fill()
    return (time.thread_time() - start) * 1e9 / count


def report(
    arguments: argparse.Namespace,
    ours: float,
    theirs: float,
    ratio: float,
    runs: list[tuple[float, float]],
) -> None:
    result = {
        "tile_noise_ns": round(ours, 2),
        "tile_noise_fastest_ns": round(min(run[0] for run in runs), 2),
        "standard_normal_ns": round(theirs, 2),
        "standard_normal_fastest_ns": round(min(run[1] for run in runs), 2),
        "ratio": round(ratio, 2),
        "sigma_over_grid": arguments.ratio,
        "samples_a_run": arguments.tiles * noise.TILE**2,
        "repetitions": arguments.repetitions,
        "machine": platform.machine(),
        "numpy": np.__version__,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"tile_noise       {ours:6.2f} ns a sample (fastest {result['tile_noise_fastest_ns']})")
    print(
        f"standard_normal  {theirs:6.2f} ns a sample "
        f"(fastest {result['standard_normal_fastest_ns']})"
    )
    print(f"ratio            {ratio:6.2f}   (median of {arguments.repetitions} repetitions)")


if __name__ == "__main__":
    main()
