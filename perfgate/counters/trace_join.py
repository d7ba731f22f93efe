"""Time and counters of one workload side by side: a trace's launches joined with those that ncu counted.

Time comes from the trace alone: ncu runs kernels one by one, with flushed caches and more than once, so that its
durations say nothing about a step. Bytes, throughputs and the roofline come from ncu alone. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfgate.counters.launch_table import KernelLaunch, LaunchGroup, NcuReport, grouped
from perfgate.errors import NotComparableError
from perfgate.models import Note
from perfgate.scenario.kernel_names import ACTIVATION, ATTENTION, PLACES
from perfgate.trace.families import normalised_name, short_name, unqualified_name
from perfgate.trace.kernel_table import Kernels, Names, combinations, filled
from perfgate.trace.launch_details import in_words
from perfgate.trace.layers import assign_layers
from perfgate.trace.selection import Selection

Shape = tuple[int, ...]
"""Blocks in x, y, z and threads of a block in x, y, z; empty where it is not known."""

LEAST_SHARE = 0.5
"""Below this share of what was counted the counters are another workload's; see :attr:`Join.share`."""


class Identity(NamedTuple):
    """What one row is about.

    Args:
        name: The normalised name without namespaces, which is the same whichever tool demangled it.
        shape: Of the launch.
        place: Which of a layer's gemms it is; empty for any other kernel, and where the sequence does not tell.
    """

    name: str
    shape: Shape
    place: str


@dataclass(frozen=True)
class Row:
    """One kernel of one shape at one place, with what either side knows of it.

    Args:
        identity: By the trace, else by ncu.
        role: By the shipped list.
        kernel: The function's own name.
        launches: A step's on each device, on average over the trace's selection; 0 where that has none.
        time_ns: Their time in a step, on each device; 0 where the selection has none.
        counted: Nothing where ncu counted none.
        joined_by: What the two sides agree in: ``name, shape, place``, ``name, shape`` or ``name``; empty where there
            is but one side.
    """

    identity: Identity
    role: str
    kernel: str
    launches: float = 0.0
    time_ns: float = 0.0
    counted: LaunchGroup | None = None
    joined_by: str = ""

    @property
    def timed(self) -> bool:
        """Whether the trace's selection has it."""
        return self.launches > 0

    @property
    def step_bytes(self) -> float | None:
        """Bytes of device memory a step: ncu's of a launch, times the trace's launches."""
        moved = self.counted.moved if self.counted else None
        return moved * self.launches if moved is not None and self.timed else None


@dataclass(frozen=True)
class Join:
    """A selection of a trace and the counters of a file.

    Args:
        selection: Where the times come from.
        counted: Where the counters come from.
        rows: Those with time, the longest first; then those with counters alone.
        share: Of what ncu counted, the part in launches that the whole trace has too, in name and shape (of attention
            in name: its grid follows the context length). By bytes of device memory, because small kernels are alike
            in all models and the large ones are not; by launches where bytes were not collected.
        cautions: What a reader should know.
    """

    selection: Selection
    counted: NcuReport
    rows: tuple[Row, ...]
    share: float
    cautions: tuple[Note, ...] = ()

    @property
    def time_ns(self) -> float:
        """Kernel time of a step, with counters or without."""
        return math.fsum(row.time_ns for row in self.rows)


def join(selection: Selection, counted: NcuReport) -> Join:
    """Put both side by side.

    Launches are one row that agree in name, shape and place. Rows of both sides join first where they agree in all
    three, what is left where it agrees in name and shape, and then in the name alone: a grid that follows the context
    length differs from step to step. Counters of several launches are pooled.

    Raises:
        NotComparableError: ``counters-other-workload``: less than :data:`LEAST_SHARE` of what was counted is the
            trace's.
    """
    launches = _counted_launches(counted)
    share = _share(selection, launches, counted.source)
    rows = {row.identity: row for row in _timed_rows(selection)}
    for key in _KEYS:
        offered = grouped((key(identity), launch) for identity, launch in launches)
        keys = {identity: key(identity) for identity, row in rows.items() if not row.counted}
        wanted = {identity: agreed for identity, agreed in keys.items() if agreed in offered}
        for identity, agreed in wanted.items():
            words = ", ".join(word for word, value in agreed._asdict().items() if value)
            rows[identity] = dataclasses.replace(rows[identity], counted=offered[agreed], joined_by=words)
        taken = set(wanted.values())
        launches = [(identity, launch) for identity, launch in launches if key(identity) not in taken]
    stray = [
        Row(identity, group.launches[0].key.role, short_name(group.launches[0].key.name), counted=group)
        for identity, group in grouped(launches).items()
    ]
    return Join(selection, counted, (*rows.values(), *stray), share, tuple(_cautions(selection, counted)))


_KEYS: tuple[Callable[[Identity], Identity], ...] = (
    lambda one: one,
    lambda one: one._replace(place=""),
    lambda one: one._replace(place="", shape=()),
)
"""What rows are joined by, the strictest first."""


def _share(selection: Selection, launches: Sequence[tuple[Identity, KernelLaunch]], source: str) -> float:
    """See :attr:`Join.share`.

    Raises:
        NotComparableError: See :func:`join`.
    """
    in_trace = _shapes(selection)
    weights = [launch.moved or 0.0 for _, launch in launches]
    weights = weights if any(weights) else [1.0] * len(launches)
    strangers = [
        (weight, identity)
        for weight, (identity, _) in zip(weights, launches, strict=True)
        if not {identity.shape, ()} & in_trace.get(identity.name, set())
    ]
    share = 1 - math.fsum(weight for weight, _ in strangers) / math.fsum(weights)
    if share < LEAST_SHARE:
        _, largest = max(strangers)
        raise NotComparableError(
            f"only {share:.0%} of what ncu counted is in {selection.trace.source}; at least {LEAST_SHARE:.0%} is "
            f"needed. The largest kernel that the trace does not have: {largest.name} {in_words(largest.shape)}",
            where=source,
            code="counters-other-workload",
        )
    return share


def _shapes(selection: Selection) -> dict[str, set[Shape]]:
    """The shapes that each kernel of the whole trace has, by name; ``()`` among them where any shape will do."""
    trace, shapes = selection.trace, dict[str, set[Shape]]()
    for name, shape in combinations(trace.kernels.name, trace.kernels.shape)[0]:
        sizes = tuple(trace.shapes[shape].tolist())
        fixed = trace.names.role[name] != ATTENTION and any(sizes)
        shapes.setdefault(unqualified_name(trace.names.normalised[name]), set()).add(sizes if fixed else ())
    return shapes


def _timed_rows(selection: Selection) -> list[Row]:
    """The selection's kernels by name, shape and place, the longest first."""
    trace = selection.trace
    kernels = trace.kernels.take(selection.rows)
    distinct, group = combinations(kernels.name, kernels.shape, kernels.place)
    launches, times = np.bincount(group), np.bincount(group, kernels.duration_ns)
    sums: dict[Identity, tuple[int, float, float]] = {}
    for (name, shape, place), count, time_ns in zip(distinct, launches.tolist(), times.tolist(), strict=True):
        sizes = tuple(trace.shapes[shape].tolist())
        same = Identity(unqualified_name(trace.names.normalised[name]), sizes if any(sizes) else (), PLACES[place])
        _, counts, total = sums.get(same, (name, 0.0, 0.0))
        sums[same] = (name, counts + count, total + time_ns)
    ranked = sorted(sums.items(), key=lambda item: (-item[1][2], item[0].name, item[0].shape, item[0].place))
    steps = selection.steps
    return [
        Row(same, trace.names.role[name], trace.names.short[name], count / steps, total / steps)
        for same, (name, count, total) in ranked
    ]


def _counted_launches(counted: NcuReport) -> list[tuple[Identity, KernelLaunch]]:
    places = _places(counted.launches)
    return [
        (Identity(unqualified_name(normalised_name(launch.key.name)), (*launch.grid, *launch.block), place), launch)
        for launch, place in zip(counted.launches, places, strict=True)
    ]


def _places(counted: Sequence[KernelLaunch]) -> list[str]:
    """Which of a layer's gemms each launch is, by its place in the order counted.

    That order tells only where attention and activation were counted too, which are between the gemms. A launch that
    is given a wrong place finds no time there, and is joined by name and shape.
    """
    role_of = {launch.key.name: launch.key.role for launch in counted}
    names, roles = tuple(role_of), tuple(role_of.values())
    if not {ATTENTION, ACTIVATION} <= set(roles):
        return [""] * len(counted)
    table = filled(
        Kernels,
        start_ns=np.arange(len(counted)),
        name=np.array([names.index(launch.key.name) for launch in counted]),
        device=np.array([launch.device for launch in counted]),
        step=np.zeros(len(counted)),
    )
    attention = Counter(launch.key.name for launch in counted if launch.key.role == ATTENTION)
    single = None if max(attention.values()) > 1 else np.zeros(len(counted), np.int16)  # one layer repeats nothing
    _, places = assign_layers(table, Names(names, tuple(map(short_name, names)), names, roles), single)
    return [PLACES[place] for place in places.tolist()]


def _cautions(selection: Selection, counted: NcuReport) -> Iterator[Note]:
    gpus = {launch.gpu.name for launch in counted.launches} - {""}
    traced = set(selection.trace.devices.values())
    if gpus and traced and not gpus & traced:
        text = f"the trace is of {', '.join(sorted(traced))}, the counters are of {', '.join(sorted(gpus))}"
        yield Note(code="counters-other-workload", text=text)
