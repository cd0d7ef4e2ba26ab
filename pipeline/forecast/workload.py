"""The work of a planned release, for a person or a machine: tasks, bytes, passes, and hours.

Times are shown where rates were measured, with what they rest on besides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.config.cluster import Cluster
from pipeline.forecast.rates_file import MachineRates
from pipeline.plan.blockwise import BlockwisePlan
from pipeline.plan.rates import Machines, StageTime
from pipeline.plan.release import ReleasePlan, cache_bytes, forecast_time
from pipeline.plan.time import bytes_read_from_storage
from pipeline.quantities import show_bytes, show_seconds

UNMEASURED = (
    "time: not foretold, no rates were measured here yet; 'scoreshield plan CONFIG --calibrate' "
    "measures them in about 20 seconds, reads no gallery and spends nothing"
)


@dataclass(frozen=True)
class Workload:
    """A plan on a cluster, and the rates that were measured for it.

    Attributes
    ----------
    plan : what is counted
    cluster : the machines it is planned for
    measured : None where no rates were measured
    interactions : whether records are sparse
    elsewhere : what is kept elsewhere than in the private folder, where storage was measured
    """

    plan: ReleasePlan
    cluster: Cluster
    measured: MachineRates | None
    interactions: bool = False
    elsewhere: tuple[str, ...] = ()

    @property
    def machines(self) -> Machines:
        """The cluster as a forecast of time sees it."""
        held = cache_bytes(self.plan, int(self.cluster.memory_limit)) if self.plan.blockwise else 0
        return Machines(self.cluster.workers, self.cluster.threads_per_worker, held)

    @property
    def times(self) -> tuple[StageTime, ...] | None:
        """Seconds of every stage; None where no rates were measured."""
        if self.measured is None:
            return None
        return forecast_time(self.plan, self.measured.rates, self.machines)

    def to_json(self) -> dict[str, Any]:
        """The blockwise projection and the times, both None where there are none."""
        blockwise, times = self.plan.blockwise, self.times
        return {
            "blockwise": None if blockwise is None else self._projection(blockwise),
            "time": None
            if times is None or self.measured is None
            else {
                "hours": sum(stage.seconds for stage in times) / 3600,
                "stages": {stage.name: stage.seconds for stage in times},
                "rates": asdict(self.measured),
                "assumptions": self.assumptions(self.measured),
            },
        }

    def to_lines(self) -> list[str]:
        """The same for a person, with tasks and bytes of every stage."""
        plan, times = self.plan, self.times
        count, (rows, columns) = plan.geometry.count, plan.geometry.shape
        lines = [
            f"work: {count} blocks of {rows} x {columns}, {plan.tasks} tasks, "
            f"{show_bytes(plan.disk_bytes)} on disk, at most "
            f"{show_bytes(plan.peak_worker_bytes)} on one worker",
            f"  {plan.encoding.described(plan.mechanism.sigma)}",
        ]
        seconds = {} if times is None else {stage.name: stage.seconds for stage in times}
        for stage in plan.stages:
            time = f", {show_seconds(seconds[stage.name])}" if stage.name in seconds else ""
            lines.append(
                f"  {stage.name}: {stage.tasks} tasks, {show_bytes(stage.disk_bytes)} on disk, "
                f"{show_bytes(stage.peak_worker_bytes)} on one worker{time}"
            )
            if stage.name == "project" and self.plan.blockwise is not None:
                lines += [f"    {line}" for line in self._projection_lines(self.plan.blockwise)]
        return lines + self._time_lines(times)

    def assumptions(self, measured: MachineRates) -> list[str]:
        """What a forecast of time takes for granted beyond what was measured."""
        assumed = []
        if self.plan.blockwise is not None:
            assumed.append(
                "products, steps and columns are what solvers typically take at this size and "
                "noise, at tolerance 1e-4; the spectrum decides"
            )
        if self.interactions:
            assumed.append(
                "inner products of interactions take as long as those of dense records, an upper "
                "estimate"
            )
        if self.elsewhere:
            assumed.append(f"{' and '.join(self.elsewhere)} as fast to reach as the private folder")
        if self.cluster.workers != measured.workers:
            assumed.append(
                f"{self.cluster.workers} workers, each as fast as one of the "
                f"{measured.workers} measured, with storage and network that keep up"
            )
        changed = measured.differences(self.cluster, self.plan.encoding.dtype)
        if changed:
            assumed.append(f"rates as they were measured ({'; '.join(changed)})")
        return assumed

    def _projection(self, blockwise: BlockwisePlan) -> dict[str, Any]:
        """What a blockwise projection typically does; widths, memory and disk are upper bounds."""
        work = blockwise.work
        return {
            "products": work.products,
            "computed_products": work.computed_products,
            "mean_columns": work.mean_columns,
            "most_columns": blockwise.width,
            "steps": work.steps,
            "flops": blockwise.flops,
            "passes": work.products,
            "bytes_a_pass": blockwise.bytes_a_product,
            "bytes_read": self._bytes_read(blockwise),
            "panel_bytes": blockwise.step_bytes,
            "bytes_a_panel": blockwise.panel_bytes,
        }

    def _projection_lines(self, blockwise: BlockwisePlan) -> list[str]:
        work = blockwise.work
        computed = (
            f" and {work.computed_products} with computed iterates"
            if work.computed_products
            else ""
        )
        return [
            f"typically {work.products} products with the noisy matrix{computed}, of about "
            f"{work.mean_columns} columns (at most {blockwise.width}): "
            f"{blockwise.flops:.2g} operations",
            f"{work.products} passes over {show_bytes(blockwise.bytes_a_product)} of noisy blocks, "
            f"{show_bytes(self._bytes_read(blockwise))} of it read from storage, the rest held by "
            "workers",
            f"{work.steps} steps on panels, {show_bytes(blockwise.step_bytes)} read and written",
        ]

    def _bytes_read(self, blockwise: BlockwisePlan) -> int:
        return bytes_read_from_storage(blockwise, self.machines)

    def _time_lines(self, times: tuple[StageTime, ...] | None) -> list[str]:
        measured = self.measured
        if times is None or measured is None:
            return [UNMEASURED]
        total = sum(stage.seconds for stage in times)
        lines = [
            f"time: about {show_seconds(total)} ({total / 3600:.3g} hours), of which "
            f"{show_seconds(times[0].seconds)} to start the cluster",
            f"  measured: rates on {measured.host}, {measured.cores} cores, "
            f"{measured.workers} workers of {measured.threads_per_worker} threads, at "
            f"{measured.measured_at}",
        ]
        return lines + [f"  assumed: {words}" for words in self.assumptions(measured)]
