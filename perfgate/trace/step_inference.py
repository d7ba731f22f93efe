"""Steps that no range names, inferred from what a process launches again and again.

A step is a stretch from one launch of a kernel, or of a CUDA graph, to the next one, where most such stretches launch
the same in the same order. Kernels of a layer repeat in this way too, and so may a block of layers or ten steps with
something after them: periods are therefore held against each other from the shortest on, and one is a step only where
something says so that happens once a step: a graph that holds several layers, a sampler, or a wait or a copy to the
host. A wait says nothing where what repeats within the step waits too, or where nothing does and it is short: a layer
with experts may wait for its routing. Without a sign there are no steps rather than wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from perfgate.models import Note
from perfgate.scenario.kernel_names import ATTENTION, COPY_KINDS, KV_WRITE, MOE, SAMPLER
from perfgate.trace.kernel_table import NO_TIME, STEP_KINDS, Steps, Trace, filled
from perfgate.trace.repeated_launches import Launches, Period, periods
from perfgate.units import percent, plural

Ints = NDArray[np.int64]

SEVERAL_LAYERS = 100
"""A graph of so many kernels holds several layers, also where none of its kernels is known to be attention; and so does
a period of so many within which nothing shorter repeats, as in a network of convolutions."""

LEAST_EXTRA_OF_PERIOD, LEAST_EXTRA_OF_INNER = 0.005, 0.02
"""What a longer period launches beside its shorter ones: at least this share of it, and of a shorter one. It is 5 % of
a Llama's step (22 of 438 kernels are in no layer), and one kernel in 7000 where a step in sixteen has one more."""

ANOTHER_STEP = 0.5
"""What comes between so much of a step as this is a step of another kind, such as a prefill."""

MOSTLY = 0.9
"""The share of stretches that must hold what says that they are steps, and below which they are called unequal."""

SELDOM = 1.5
"""A wait tells a step that holds a shorter period n times where at most this many in n of the shorter ones wait: with
asynchronous scheduling the host waits once a step, but in any of its layers."""

LEAST_COVERED = 0.8
"""Less of the launches in steps than this is called unclear."""


@dataclass(frozen=True)
class _Found:
    """The steps of one process."""

    launches: Launches
    period: Period
    doubts: tuple[str, ...]


def infer_steps(trace: Trace) -> tuple[Steps, Ints, tuple[Note, ...]]:
    """Steps of a trace in which no range names one.

    Args:
        trace: With kernels whose launches are known where the trace shows them.

    Returns:
        The steps; the time by which each kernel belongs to one, its launch, or its start in a process without any
        launch; and what to know, which says how each process's steps were found and what is unclear about them.
    """
    kernels = trace.kernels
    time_ns = kernels.launched_ns
    parts, notes = [], []
    for process in np.unique(kernels.process).tolist():
        of_process, timed = kernels.process == process, time_ns != NO_TIME
        if not (of_process & timed).any():
            time_ns = np.where(of_process, kernels.start_ns, time_ns)
            timed |= of_process
        rows = np.flatnonzero(of_process & timed).astype(np.int32)
        repetition, why = _period_of(trace, Launches.of(kernels, rows, time_ns), process)
        who = f" of process {trace.processes[process]}" if len(trace.processes) > 1 else ""
        if repetition is None:
            notes.append(Note(code="steps-unclear", text=f"no range names a step{who}, {why}"))
            continue
        parts.append(_steps(repetition, process))
        notes += _notes(trace, repetition, parts[-1], who)
    if not parts:
        return filled(Steps), time_ns, tuple(notes)
    return Steps.joined(parts), time_ns, tuple(notes)


_WHOLE = "so the table is of the whole trace"


def _period_of(trace: Trace, launches: Launches, process: int) -> tuple[_Found | None, str]:
    """What repeats as a step in a process, or why nothing does."""
    levels = periods(launches)
    if not levels:
        return None, _WHOLE
    signs = _Signs.of(trace, launches, process)
    chosen, inner = _outermost(levels, signs)
    if not signs.tell(chosen, inner):
        often = f"every {plural(chosen.kernels, 'kernel')}"
        waits = ", though the host waits in each," if signs.waiting(chosen) >= MOSTLY else ""
        return None, f"and nothing tells whether what repeats {often}{waits} is a step or a part of one, {_WHOLE}"
    begin = max(chosen.members, key=lambda period: _gap_ns(launches, period)).of_one_sort()
    return _Found(launches, begin, tuple(_doubts(launches, begin, inner, signs.graphs))), ""


@dataclass(frozen=True)
class _Signs:
    """What may tell that a period is a step.

    Args:
        waits_ns: When the host waited for the device, or copied to itself, in order.
        graphs: Which launches are of graphs with several layers.
        samplers: Which launches choose a token, a kernel each.
        experts: Which launches are of experts, before which a router's choice looks like a sampler's.
    """

    launches: Launches
    waits_ns: Ints
    graphs: NDArray[np.bool_]
    samplers: tuple[NDArray[np.bool_], ...]
    experts: NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace, launches: Launches, process: int) -> Self:
        """Those of a process."""
        sampling = (number for number, role in enumerate(trace.names.role) if role == SAMPLER)
        samplers = tuple(launches.name == number for number in sampling)
        experts = np.array([role == MOE for role in trace.names.role])[launches.name]
        return cls(launches, _waits(trace, process), _whole_graphs(trace, launches), samplers, experts)

    def waiting(self, period: Period) -> float:
        """The share of a period's equal stretches in which the host waits."""
        edges = np.searchsorted(self.waits_ns, self.launches.time_ns[period.at])
        return float((np.diff(edges)[period.alike] > 0).mean())

    def tell(self, period: Period, inner: Period | None) -> bool:
        """Whether something that happens once a step is in most of a period's equal stretches, and not within them."""
        if _each(period, self.graphs):
            return True
        if inner is None and period.kernels < SEVERAL_LAYERS:  # one layer, or a small step that repeats none
            return any(_each(period, sampler) for sampler in self.samplers) and not _each(period, self.experts)
        if any(_each(period, sampler) and not (inner and _each(inner, sampler)) for sampler in self.samplers):
            return True
        layers = inner if inner and inner.kernels < SEVERAL_LAYERS else None
        seldom = layers is None or self.waiting(layers) * max(period.holds(layers), 1) <= SELDOM
        return seldom and self.waiting(period) >= MOSTLY


def _outermost(levels: Sequence[Period], signs: _Signs) -> tuple[Period, Period | None]:
    """The longest period that is more than a number of shorter ones, and the one within it."""
    chosen, inner = levels[0], None
    for longer in levels[1:]:
        often = longer.holds(chosen)
        if often < 2:  # noqa: PLR2004 (once is not a repetition)
            if longer.covered > chosen.covered:
                chosen, inner = longer, (inner if often else None)
            continue
        extra = longer.kernels - longer.holds(chosen, alike=True) * chosen.kernels
        if extra < max(LEAST_EXTRA_OF_PERIOD * longer.kernels, LEAST_EXTRA_OF_INNER * chosen.kernels):
            continue
        whole = _each(chosen, signs.graphs) and not longer.more(signs.graphs, chosen, often)
        another = inner is not None and extra >= ANOTHER_STEP * chosen.kernels
        rarer = often > 2  # noqa: PLR2004 (what comes after each is a part of the step)
        if rarer and (whole or (another and signs.tell(chosen, inner))):
            continue
        chosen, inner = longer, chosen
    return chosen, inner


def _waits(trace: Trace, process: int) -> Ints:
    """When the host waited for the device, or copied to itself, in order."""
    calls, of_process = trace.calls, trace.calls.process == process
    waits = calls.start_ns[calls.of("synchronise") & of_process]
    to_host = [number for number, kind in enumerate(COPY_KINDS) if kind.startswith("d2h")]
    copied = np.isin(trace.copies.kind, to_host) & (trace.copies.process == process)
    called = calls.take(calls.of("copy") & of_process)
    launched = called.start_ns[np.isin(called.correlation, trace.copies.correlation[copied])]
    return np.sort(np.concatenate([waits, launched if len(called) else trace.copies.start_ns[copied]]))


def _whole_graphs(trace: Trace, launches: Launches) -> NDArray[np.bool_]:
    """Which launches are of graphs with several layers."""
    layered = np.array([role in (ATTENTION, KV_WRITE) for role in trace.names.role])
    several = launches.count(layered) > 1
    return np.asarray((launches.kernels > 1) & (several | (launches.kernels >= SEVERAL_LAYERS)))


def _each(period: Period, launched: NDArray[np.bool_]) -> bool:
    """Whether most of a period's equal stretches hold one of these launches."""
    return bool((period.sums(launched)[period.alike] > 0).mean() >= MOSTLY)


def _gap_ns(launches: Launches, period: Period) -> float:
    """For how long the host did not launch before what begins a period: it waits and prepares between steps."""
    before = launches.time_ns[period.at] - launches.time_ns[np.maximum(period.at - 1, 0)]
    return float(np.median(before[1:]))


def _doubts(launches: Launches, period: Period, inner: Period | None, graphs: NDArray[np.bool_]) -> Iterable[str]:
    """What makes it unclear that these are steps."""
    alike = float(period.alike.mean())
    if alike < MOSTLY:
        yield f"only {percent(alike)} of them launch the same kernels, but for a few"
    covered = float(launches.kernels[period.at[0] : period.at[-1]].sum() / launches.kernels.sum())
    if covered < LEAST_COVERED:
        yield f"they hold only {percent(covered)} of the launches"
    if inner is None and not _each(period, graphs):
        yield "nothing repeats within one, as layers do, so one may be a part of a step"


def _steps(repetition: _Found, process: int) -> Steps:
    """The steps of a process; the last one has no end, and those unlike the others are of an unknown kind."""
    launches, period = repetition.launches, repetition.period
    start_ns = launches.time_ns[period.at]
    last = abs(int(launches.kernels[period.at[-1] :].sum()) - period.kernels) <= period.tolerance
    repeated = STEP_KINDS.index("repeated")
    return filled(
        Steps,
        index=np.arange(len(start_ns)),
        kind=np.where(np.append(period.alike, last), repeated, STEP_KINDS.index("unknown")),
        start_ns=start_ns,
        end_ns=np.append(start_ns[1:] - 1, np.iinfo(np.int64).max),
        process=np.full(len(start_ns), process),
        complete=np.arange(len(start_ns)) < len(start_ns) - 1,
        own=np.zeros(len(start_ns)),
        inferred=np.ones(len(start_ns)),
    )


def _notes(trace: Trace, repetition: _Found, steps: Steps, who: str) -> list[Note]:
    launches, period = repetition.launches, repetition.period
    first = int(period.at[0])
    size = int(launches.kernels[first])
    what = f"a CUDA graph of {size} kernels" if size > 1 else trace.names.short[launches.name[first]]
    text = (
        f"no range names a step: {plural(len(steps), 'step')}{who} are inferred, each from a launch of {what} to the "
        f"next one; {int(period.alike.sum())} launch the same {period.kernels} kernels, but for a few"
    )
    notes = [Note(code="steps-unclear", text=text)]
    if repetition.doubts:
        notes.append(
            Note(code="steps-unclear", text=f"the inferred steps{who} may be wrong: {'; '.join(repetition.doubts)}")
        )
    return notes
