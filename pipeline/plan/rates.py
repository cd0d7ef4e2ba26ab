"""What foretold times are computed from: measured rates, machines, and tasks in waves.

Rates are of one thread while all threads of the calibrating cluster were busy, so that what threads
share, such as a memory bus or a disk, is in them as far as that cluster shared it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """What a calibration measures. All but the last group are of one thread of a worker.

    Attributes
    ----------
    noise_samples : noisy values a second, without their inner products
    exact_flops : operations a second of exact inner products
    gallery_bytes : bytes of records read and checked a second
    block_write_bytes : bytes of noisy blocks a second, with digest and receipt
    block_read_bytes : bytes of noisy blocks a second, from storage where it could be emptied of
        what memory holds of it
    block_values : stored values a second that a product takes up, without its operations
    computed_values : values a second of an iterate of ``aap``, without their operations
    product_flops : operations a second of a product, at the planned width of a panel
    panel_bytes : bytes of panels read or written a second
    panel_flops : operations a second of a combination or reduction of panels
    published_values : values a second of a published matrix, without their inner products
    published_flops : operations a second of published inner products
    eigen_flops : operations a second of an eigendecomposition with the threads of one projection
    driver_flops : the same of a small one, on the driver
    driver_bytes : published bytes a second that the driver reads, digests and makes durable
    message_bytes : bytes a second between driver and workers
    task_seconds : of a task that does nothing, one after another through the window
    round_seconds : of a round of such tasks, besides ``round_task_seconds`` for each of them
    round_task_seconds : see ``round_seconds``
    start_seconds : until the cluster was there
    """

    noise_samples: float
    exact_flops: float
    gallery_bytes: float
    block_write_bytes: float
    block_read_bytes: float
    block_values: float
    computed_values: float
    product_flops: float
    panel_bytes: float
    panel_flops: float
    published_values: float
    published_flops: float
    eigen_flops: float
    driver_flops: float
    driver_bytes: float
    message_bytes: float
    task_seconds: float
    round_seconds: float
    round_task_seconds: float
    start_seconds: float


@dataclass(frozen=True)
class Machines:
    """What a forecast needs to know of a cluster.

    Attributes
    ----------
    workers, threads_per_worker : processes, and threads of each
    cache_bytes : noisy blocks that one worker may hold
    """

    workers: int
    threads_per_worker: int
    cache_bytes: int

    @property
    def threads(self) -> int:
        """Tasks at the same time."""
        return self.workers * self.threads_per_worker


@dataclass(frozen=True)
class StageTime:
    """Seconds that a stage will take, and the bytes of noisy blocks that it reads from storage."""

    name: str
    seconds: float
    bytes_read: int = 0


def in_waves(work: float, tasks: int, rates: Rates, machines: Machines) -> float:
    """Equal tasks on all threads: the last wave may be partial, and handing out takes time."""
    if tasks == 0:
        return 0.0
    waves = -(-tasks // machines.threads)
    return max(work * waves / tasks, tasks * rates.task_seconds) + rates.task_seconds
