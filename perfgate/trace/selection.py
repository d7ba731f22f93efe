"""The part of a trace that a reader asks for, its pure decode steps, one step or one layer, with sums and spreads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import UsageError
from perfgate.scenario.kernel_names import PLACES
from perfgate.trace.breakdown import StepFigures, figures
from perfgate.trace.kernel_table import NONE, STEP_KINDS, Steps, Timed, Trace, combinations, filled, rows_by
from perfgate.trace.lost_work import check_shown
from perfgate.units import plural

_Rows = TypeVar("_Rows", bound=Timed)


class RankShown(NamedTuple):
    """A rank of a selection: a process and its device.

    Args:
        steps: How many of its steps are shown; 0 where the trace has none.
    """

    process: int
    device: int
    steps: int


@dataclass(frozen=True)
class Selection:
    """Kernels of a trace with the figures of their steps.

    Args:
        figures: Of the steps selected; none where the trace has no steps.
        rows: Rows of the kernel table, in order of start.
        layer: The layer selected, or ``None`` for all that a step runs.
    """

    trace: Trace
    figures: StepFigures
    rows: NDArray[np.int64]
    what: str
    layer: int | None = None

    @property
    def steps(self) -> int:
        """What a mean is over: steps, counted on each device; 1 where there are none."""
        return max(len(self.figures), 1)

    @property
    def ranks(self) -> list[RankShown]:
        """The ranks whose kernels are shown, in order of process and device."""
        kernels, figures = self.trace.kernels, self.figures
        of_step = self.trace.steps.process[figures.step]
        return [
            RankShown(
                self.trace.processes[process],
                device,
                int(((of_step == process) & (figures.device == device)).sum()),
            )
            for process, device in combinations(kernels.process[self.rows], kernels.device[self.rows])[0]
        ]


@dataclass(frozen=True)
class KernelSum:
    """Launches of one kernel, or of one role, summed over a selection.

    Args:
        place: Where in the layer; empty where that is not known or not one place.
        name: Index into the trace's names; -1 for a whole role.
        graph_launches: Of these, from CUDA graphs.
        step: Row of the trace's steps, or -1 where it sums over steps or over what is outside.
        device: The device's number, or -1 where it sums over devices or over what is outside.
    """

    role: str
    place: str
    name: int
    launches: int
    graph_launches: int
    time_ns: int
    step: int = NONE
    device: int = NONE


def select(trace: Trace, step: int | None = None, layer: int | None = None) -> Selection:
    """Choose from a trace.

    Args:
        trace: The trace.
        step: N of ``perfgate.step.N``; without it the complete pure decode steps, or the complete ones that repeat of
            inferred steps, or all steps where there are none, or the whole trace where it has no steps.
        layer: A layer's number from 0; all kernels without it.

    Raises:
        UsageError: There is no such step, it ran nothing, or none of its kernels is in that layer.
        NotMeasuredError: The trace does not hold all of what these steps ran and when
            (:func:`perfgate.trace.lost_work.check_shown`).
    """
    steps = figures(trace)
    if step is not None:
        chosen, what = _one_step(trace, steps, step)
    elif len(steps):
        chosen, what = _decode_steps(trace, steps)
    else:
        chosen, what = np.zeros(0, bool), "the whole trace"
        check_shown(trace, np.empty(0, np.int64), what)
    kernels = trace.kernels
    of_step = np.zeros(len(trace.steps) + 1, bool)  # the last one represents no step
    of_step[steps.step[chosen]] = True
    rows = np.flatnonzero(of_step[kernels.step]) if len(steps) else np.arange(len(kernels))
    if layer is not None:
        inside = kernels.layer[rows] == layer
        if not inside.any():
            raise UsageError(f"no kernel of {what} is in layer {layer}: {_layers(kernels.layer[rows])}")
        rows, what = rows[inside], f"layer {layer} of {what}"
    return Selection(trace, steps.take(chosen), rows, what, layer)


def _one_step(trace: Trace, steps: StepFigures, step: int) -> tuple[NDArray[np.bool_], str]:
    numbers = trace.steps.index
    if not (numbers == step).any():
        there = f"it has steps {numbers.min()} to {numbers.max()}" if len(numbers) else "no range names a step"
        raise UsageError(f"the trace has no step {step}: {there}")
    kind = STEP_KINDS[trace.steps.kind[numbers == step][0]]
    what, rows = f"step {step} ({kind})", np.flatnonzero(numbers == step)
    check_shown(trace, np.union1d(rows, np.minimum(rows + 1, len(numbers) - 1)), f"{what} and the next one")
    chosen = numbers[steps.step] == step
    if not chosen.any():
        raise UsageError(f"{what} ran no kernel")
    return chosen, what


def _decode_steps(trace: Trace, steps: StepFigures) -> tuple[NDArray[np.bool_], str]:
    for kind in ("decode", "repeated"):
        rows = trace.steps.complete_of(kind)
        check_shown(trace, rows, plural(len(rows), f"{kind} step")) if len(rows) else None
        chosen = steps.complete_of(trace, kind)
        if chosen.any():
            return chosen, _of_ranks(trace, steps.take(chosen), f"{kind} step")
    check_shown(trace, np.unique(steps.step), plural(len(np.unique(steps.step)), "step"))
    return np.ones(len(steps), bool), _of_ranks(trace, steps, "step")


def _of_ranks(trace: Trace, steps: StepFigures, noun: str) -> str:
    """How many steps these are, of each rank where there are several."""
    ranks, owner = combinations(trace.steps.process[steps.step], steps.device)
    counts = np.bincount(owner)
    least, most = int(counts.min()), int(counts.max())
    shown = plural(most, noun) if least == most else f"{least} to {plural(most, noun)}"
    return shown if len(ranks) == 1 else f"{shown} of each of {len(ranks)} ranks"


def _layers(layer: NDArray[np.int16]) -> str:
    inside = layer[layer != NONE]
    return f"there are layers {inside.min()} to {inside.max()}" if len(inside) else "its sequence does not repeat"


def patterns(selection: Selection) -> list[tuple[int, int]]:
    """How many kernels the steps launch, and how many steps launch so many, the most frequent first."""
    return Counter(selection.figures.launches.tolist()).most_common()


def by_kernel(selection: Selection) -> list[KernelSum]:
    """Each kernel and place, the longest first."""
    return _sums(selection, "name", "place")


def by_step_and_kernel(selection: Selection) -> list[KernelSum]:
    """Each step, device, kernel and place, in order of steps, the longest first; outside the steps comes first."""
    return sorted(_sums(selection, "name", "place", "step", "device"), key=lambda kernel: (kernel.step, kernel.device))


def by_role(selection: Selection) -> list[KernelSum]:
    """Each role, the longest first."""
    launches, graph_launches, time_ns = Counter[str](), Counter[str](), Counter[str]()
    for kernel in by_kernel(selection):
        launches[kernel.role] += kernel.launches
        graph_launches[kernel.role] += kernel.graph_launches
        time_ns[kernel.role] += kernel.time_ns
    sums = [KernelSum(role, "", NONE, launches[role], graph_launches[role], time_ns[role]) for role in launches]
    return sorted(sums, key=lambda total: (-total.time_ns, total.role))


def outside(trace: Trace) -> tuple[int, int]:
    """Kernels that belong to no step: how many, and the sum of their durations in nanoseconds."""
    rows = trace.kernels.step == NONE
    return int(rows.sum()), int(trace.kernels.duration_ns[rows].sum())


def _sums(selection: Selection, *columns: str) -> list[KernelSum]:
    """Sums over the kernels that agree in ``columns``: name, place, and perhaps step and device; the longest first."""
    kernels, names, rows = selection.trace.kernels, selection.trace.names, selection.rows
    distinct, group = combinations(*(getattr(kernels, column)[rows] for column in columns))
    summed = (None, kernels.graph[rows], kernels.duration_ns[rows])
    counts = np.stack([np.bincount(group, weights) for weights in summed], axis=1)
    sums = [
        KernelSum(names.role[name], PLACES[place], name, *figures, *owner)
        for (name, place, *owner), figures in zip(distinct, counts.astype(np.int64).tolist(), strict=True)
    ]
    return sorted(sums, key=lambda kernel: (-kernel.time_ns, kernel.name, kernel.place))


def as_one_step(trace: Trace) -> Trace:
    """The same trace with one step a process, which holds all that the process did."""
    tables: tuple[Timed, ...] = (trace.kernels, trace.copies, trace.memsets, trace.overhead, trace.calls)
    process, start_ns, duration_ns = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("process", "start_ns", "duration_ns")
    )
    processes, owner = np.unique(process, return_inverse=True)
    begin_ns, end_ns = (np.full(len(processes), edge) for edge in (start_ns.max(), start_ns.min()))
    np.minimum.at(begin_ns, owner, start_ns)
    np.maximum.at(end_ns, owner, start_ns + duration_ns)
    steps = filled(
        Steps,
        index=np.zeros(len(processes)),
        kind=np.full(len(processes), STEP_KINDS.index("unknown")),
        start_ns=begin_ns,
        end_ns=end_ns,
        process=processes,
        complete=np.ones(len(processes)),
        own=np.zeros(len(processes)),
    )

    def placed(table: _Rows) -> _Rows:
        return dataclasses.replace(table, step=np.searchsorted(processes, table.process).astype(np.int32))

    return dataclasses.replace(
        trace,
        kernels=placed(trace.kernels),
        copies=placed(trace.copies),
        memsets=placed(trace.memsets),
        overhead=placed(trace.overhead),
        calls=placed(trace.calls),
        steps=steps,
    )


@dataclass(frozen=True)
class KernelSpread:
    """The durations of one kernel in one place of the layer, over a selection, in nanoseconds.

    Args:
        place: Where in the layer; empty where that is not known.
        name: Index into the trace's names.
        median_ns: The middle one; of an even number the mean of the two in the middle.
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
    spreads = []
    for (name, place), members in zip(distinct, rows_by(group), strict=True):
        times = np.sort(kernels.duration_ns[selection.rows[members]])
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
