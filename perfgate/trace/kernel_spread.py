"""How much the time of one kernel varies from launch to launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfgate.scenario.kernel_names import PLACES
from perfgate.trace.kernel_table import combinations
from perfgate.trace.selection import Selection


@dataclass(frozen=True)
class KernelSpread:
    """The durations of one kernel in one place of the layer, over a selection, in nanoseconds.

    Args:
        role: The role.
        place: Where in the layer; empty where that is not known.
        name: Index into the trace's names.
        launches: How many.
        time_ns: Their sum.
        least_ns: The shortest.
        median_ns: The middle one; of an even number the mean of the two in the middle.
        most_ns: The longest.
        mean_ns: Their mean.
        sd_ns: Their standard deviation, by n - 1; ``None`` of a single launch.
    """

    role: str
    place: str
    name: int
    launches: int
    time_ns: int
    least_ns: int
    median_ns: float
    most_ns: int
    mean_ns: float
    sd_ns: float | None

    @property
    def relative_sd(self) -> float | None:
        """The standard deviation as a share of the mean; ``None`` where either is not known or 0."""
        return self.sd_ns / self.mean_ns if self.sd_ns is not None and self.mean_ns else None


def kernel_spreads(selection: Selection) -> list[KernelSpread]:
    """Each kernel and place of a selection, those that take most time first."""
    kernels, names = selection.trace.kernels, selection.trace.names
    distinct, group = combinations(kernels.name[selection.rows], kernels.place[selection.rows])
    duration = kernels.duration_ns[selection.rows]
    order = np.lexsort((duration, group))
    cuts = np.searchsorted(group[order], np.arange(1, len(distinct)))
    spreads = []
    for (name, place), times in zip(distinct, np.split(duration[order], cuts), strict=True):
        spreads.append(
            KernelSpread(
                role=names.role[name],
                place=PLACES[place],
                name=name,
                launches=len(times),
                time_ns=int(times.sum()),
                least_ns=int(times[0]),
                median_ns=float(np.median(times)),
                most_ns=int(times[-1]),
                mean_ns=float(times.mean()),
                sd_ns=float(times.std(ddof=1)) if len(times) > 1 else None,
            )
        )
    return sorted(spreads, key=lambda kernel: (-kernel.time_ns, kernel.name, kernel.place))
