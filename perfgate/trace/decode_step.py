"""What the decode steps of one traced trial ran, as a record keeps it: step patterns, and times by step and role."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Annotated, Self

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from perfgate.errors import NotMeasuredError
from perfgate.models import Frozen, absent
from perfgate.scenario.kernel_names import COPY_KINDS, PLACES, UNLISTED
from perfgate.trace.breakdown import StepFigures, consecutive, figures
from perfgate.trace.idle_gaps import GAPS
from perfgate.trace.kernel_table import NO_TIME, NONE, STEP_KINDS, Trace, combinations
from perfgate.trace.launch_shapes import Shapes, pooled_shapes, shapes_by_key
from perfgate.trace.lost_work import check_shown
from perfgate.trace.moves import Moves, moves_of, pooled_moves

STEADY = ("hashes", "addresses")
"""Kept equal between engines, so that their host does the same work (:mod:`perfgate.kernels.tracing`)."""

COARSEST_TICK_NS = 1000
"""No device clock that a profiler reads has longer steps; a greater common divisor of times is chance."""
FINEST_TICK_NS = 5
"""Half of all times are a nanosecond beside a multiple of anything smaller, so a shorter step cannot be seen."""
ON_TICKS = 0.9
"""This share of the different times is on steps; the rest are long, and the driver's scaling moved their last digit."""
TICK_TIMES, MOST_TICK_TIMES = 8, 4096
"""Of fewer different times many steps are divisors by chance; more of them say nothing new."""


class KernelKey(Frozen):
    """A kernel's identity across builds.

    Args:
        role: Its family; ``unlisted`` where no rule matched.
        place: Where in a layer it is, of :data:`perfgate.scenario.kernel_names.PLACES`; empty where that is not known.
        name: Normalised name.
    """

    role: str
    place: str = ""
    name: str


class Pattern(Frozen):
    """Steps that ran the same kernels, each as often and as many of them from graphs, and the same copies.

    Args:
        steps: How many did.
        kernels: Indices into :attr:`DecodeSteps.keys`, in the order of one such step.
        outside_graphs: Positions in ``kernels`` of those that no CUDA graph launched, ascending.
        copies: Copies a step by kind of :data:`perfgate.scenario.kernel_names.COPY_KINDS`; kinds that do not occur are
            left out.
        layer_begins: Positions in ``kernels`` at which a layer begins, then the one behind the last layer; empty where
            no layers are known.
    """

    steps: PositiveInt
    kernels: tuple[int, ...]
    outside_graphs: tuple[int, ...] = ()
    copies: dict[str, int] = {}
    layer_begins: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _positions_of_its_kernels(self) -> Self:
        end = len(self.kernels)
        begins = (0, *self.layer_begins, end)
        if any(later < earlier for earlier, later in pairwise(begins)) or not all(
            0 <= n < end for n in self.outside_graphs
        ):
            raise ValueError("expected positions of its kernels")
        return self

    @property
    def graph_launches(self) -> int:
        """Kernels of one step that CUDA graphs launch."""
        return len(self.kernels) - len(self.outside_graphs)

    def layers(self) -> list[int | None]:
        """The layer of each kernel, from 0; ``None`` outside the layers."""
        layers: list[int | None] = [None] * len(self.kernels)
        for layer, (begin, end) in enumerate(pairwise(self.layer_begins)):
            layers[begin:end] = [layer] * (end - begin)
        return layers


class DecodeSteps(Frozen):
    """The pure, complete decode steps of one traced trial, counted on each device; times in integer nanoseconds.

    Columns hold an entry a step, in order; a figure that a step does not have (the last has no successor) is ``None``.

    Args:
        source: The profiler and its version.
        keys: Every kernel that occurs.
        patterns: The most frequent first.
        step_ns: First kernel to that of the next step, where that is one of these; between iterations there is no step.
        span_ns: First kernel, copy or memset to the end of the last.
        busy_ns: Union of kernels, copies and memsets.
        kernel_ns: Sum over the kernels.
        slack_ns: How much longer the host could have worked in a step before the device would have waited, where its
            predecessor is one of these, see :class:`perfgate.trace.breakdown.StepFigures`.
        work_ns: The host's work in a step, waits left out.
        call_ns: The host's launching calls.
        gap_ns: Idle time by what it goes with, see :data:`perfgate.trace.idle_gaps.GAPS`.
        role_ns: Kernel time by role.
        tick_ns: The step of the clock that stamped the kernels, see :func:`tick_of`.
        key_launches: Launches of each key, over all steps.
        key_ns: Kernel time of each key, over all steps.
        key_shapes: Launches of each key by launch shape, over all steps; empty where the profiler tells no shapes.
        copy_bytes: Bytes copied by kind, over all steps.
        moves: Steps by what they copy of each kind and set; ``None`` where that was not kept with its times.
        waits: Calls in which the host waits for the device, over all steps; ``None`` where that was not kept.
        held: What of the worker was the same in every engine: of :data:`STEADY`, and its cores.
        cautions: What the reader should know: reason code and words.
    """

    source: str
    keys: tuple[KernelKey, ...]
    patterns: Annotated[tuple[Pattern, ...], MinLen(1)]
    step_ns: tuple[int | None, ...]
    span_ns: tuple[int, ...]
    busy_ns: tuple[int, ...]
    kernel_ns: tuple[int, ...]
    slack_ns: tuple[int | None, ...]
    work_ns: tuple[int | None, ...]
    call_ns: tuple[int, ...]
    gap_ns: dict[str, tuple[int, ...]]
    role_ns: dict[str, tuple[int, ...]]
    key_launches: tuple[NonNegativeInt, ...]
    key_ns: tuple[NonNegativeInt, ...]
    key_shapes: Annotated[tuple[Shapes, ...], Field(exclude_if=operator.not_)] = ()
    copy_bytes: dict[str, int] = {}
    moves: Annotated[dict[str, tuple[Moves, ...]] | None, Field(exclude_if=absent)] = None
    waits: Annotated[NonNegativeInt | None, Field(exclude_if=absent)] = None
    held: tuple[str, ...] = ()
    cautions: tuple[tuple[str, str], ...] = ()
    tick_ns: Annotated[int, Field(ge=1, le=COARSEST_TICK_NS)] = 1

    @model_validator(mode="after")
    def _kernels_of_its_keys(self) -> Self:
        count = len(self.keys)
        if not (len(self.key_launches) == len(self.key_ns) == (len(self.key_shapes) or count) == count):
            raise ValueError("expected launches and time of each key")
        if not all(0 <= key < count for pattern in self.patterns for key in pattern.kernels):
            raise ValueError("expected kernels that are keys")
        return self

    @property
    def steps(self) -> int:
        """How many steps there are, counted on each device."""
        return sum(pattern.steps for pattern in self.patterns)

    @property
    def graph_coverage(self) -> float:
        """The share of all kernels that CUDA graphs launched."""
        launches = sum(pattern.steps * len(pattern.kernels) for pattern in self.patterns)
        return sum(pattern.steps * pattern.graph_launches for pattern in self.patterns) / launches

    @property
    def unlisted_share(self) -> float:
        """The share of kernel time in kernels whose role no rule knows; 0 where no kernel took any time."""
        return sum(self.role_ns.get(UNLISTED, ())) / max(sum(self.kernel_ns), 1)

    def without_columns(self) -> DecodeSteps:
        """What the steps ran, which does not grow with their number: of their times only those of what ran, as sums."""
        nothing: dict[str, object] = dict.fromkeys(COLUMNS, ())
        roles = {role: (sum(times),) for role, times in self.role_ns.items()}
        summed = {"kernel_ns": (sum(self.kernel_ns),), "role_ns": roles, "gap_ns": {}}
        return self.model_copy(update={**nothing, **summed})

    def launches(self, pattern: Pattern) -> Counter[tuple[KernelKey, bool]]:
        """How often one step of a pattern launches each kernel, those from graphs (true) and the others apart."""
        outside = set(pattern.outside_graphs)
        return Counter((self.keys[key], place not in outside) for place, key in enumerate(pattern.kernels))

    def role_launches(self, pattern: Pattern) -> Counter[str]:
        """How many kernels of each role one step of a pattern launches."""
        return Counter(self.keys[key].role for key in pattern.kernels)


def summarise(trace: Trace) -> DecodeSteps:
    """What the complete, pure decode steps of a trace ran.

    Raises:
        NotMeasuredError: It has none (``evidence-missing``).
    """
    return summarise_steps(trace, decode_figures(trace))


def decode_figures(trace: Trace) -> StepFigures:
    """The figures of the complete, pure decode steps of a trace, as those of steps that have no others beside them.

    Raises:
        NotMeasuredError: It has none (``evidence-missing``), or :func:`~perfgate.trace.lost_work.check_shown` refuses.
    """
    every = figures(trace)
    decode = every.pure_decode(trace)
    check_shown(trace, trace.steps.complete_of("decode"), "decode steps")
    chosen = _among_themselves(trace, every, decode).take(decode)
    if not len(chosen):
        kinds = Counter(STEP_KINDS[kind] for kind in trace.steps.kind.tolist())
        there = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none at all"
        raise NotMeasuredError(
            f"the trace shows no decode step from beginning to end with a kernel in it; steps: {there}",
            code="evidence-missing",
        )
    return chosen


def summarise_steps(trace: Trace, chosen: StepFigures) -> DecodeSteps:
    """What some steps of a trace ran, of whatever kind; a step's own figures say whether it has a successor.

    Args:
        trace: All of it.
        chosen: The figures of the steps, at least one.
    """
    steps = _Sequences(trace, chosen)
    roles = {role: chosen.role_ns[:, n] for n, role in enumerate(trace.roles) if chosen.role_launches[:, n].any()}
    sizes = dict(zip(COPY_KINDS, chosen.copy_bytes.sum(axis=0).tolist(), strict=True))
    return DecodeSteps(
        source=trace.source,
        keys=steps.keys,
        patterns=steps.patterns(chosen),
        **{name: _known(getattr(chosen, name)) for name in COLUMNS},
        gap_ns={gap: tuple(chosen.gap_ns[:, n].tolist()) for n, gap in enumerate(GAPS)},
        role_ns={role: tuple(column.tolist()) for role, column in roles.items()},
        key_launches=tuple(np.bincount(steps.key, minlength=len(steps.keys)).tolist()),
        key_ns=steps.key_ns,
        key_shapes=steps.key_shapes,
        copy_bytes={kind: size for kind, size in sizes.items() if size},
        moves=moves_of(chosen),
        waits=int(chosen.syncs.sum()),
        cautions=tuple((note.code, note.text) for note in trace.cautions),
        tick_ns=tick_of(trace.kernels.duration_ns),
    )


def tick_of(times_ns: NDArray[np.int64]) -> int:
    """The step of the clock that stamped kernels, in nanoseconds, as their times show it; 1 where they show none.

    It is the longest of which their times are multiples, to a nanosecond: NVIDIA's GPUs stamp kernels in steps of
    32 ns, and the driver's conversion of its clock to the host's moves one time in six by a nanosecond
    (tests/fixtures). Of a few times it is their greatest common divisor.

    Args:
        times_ns: Durations of single kernels, shape (n,); sums of them would add up the nanoseconds.
    """
    times = np.unique(times_ns)
    if len(times) < TICK_TIMES:
        return min(int(np.gcd.reduce(times, initial=0)) or 1, COARSEST_TICK_NS)
    times = times[:: -(-len(times) // MOST_TICK_TIMES)]

    def on(step: int) -> float:
        beside = times % step
        return float(np.mean(np.minimum(beside, step - beside) <= 1))

    return next((step for step in range(COARSEST_TICK_NS, FINEST_TICK_NS - 1, -1) if on(step) >= ON_TICKS), 1)


def _among_themselves(trace: Trace, steps: StepFigures, chosen: NDArray[np.bool_]) -> StepFigures:
    """Figures without those that a step shares with one that is not chosen, such as a prefill."""
    earlier, later = consecutive(trace, steps.step, steps.device)
    pairs = chosen[earlier] & chosen[later]
    before, behind = np.zeros(len(steps), bool), np.zeros(len(steps), bool)
    behind[earlier[pairs]], before[later[pairs]] = True, True
    return dataclasses.replace(
        steps,
        step_ns=np.where(behind, steps.step_ns, NO_TIME),
        slack_ns=np.where(before, steps.slack_ns, NO_TIME),
    )


def pool(trials: Sequence[DecodeSteps]) -> DecodeSteps:
    """The steps of several trials as those of one; a step has no successor in another trial.

    Raises:
        ValueError: There is no trial.
    """
    if not trials:
        raise ValueError("no trial to pool")
    keys = tuple(sorted({key for trial in trials for key in trial.keys}, key=_in_order))
    number = {key: n for n, key in enumerate(keys)}
    first: dict[tuple[object, ...], Pattern] = {}
    count: Counter[tuple[object, ...]] = Counter()
    launches, times = [0] * len(keys), [0] * len(keys)
    waits = [trial.waits for trial in trials if trial.waits is not None]
    for trial in trials:
        for key, often, time_ns in zip(trial.keys, trial.key_launches, trial.key_ns, strict=True):
            launches[number[key]] += often
            times[number[key]] += time_ns
        for pattern in trial.patterns:
            identity = frozenset(trial.launches(pattern).items()), frozenset(pattern.copies.items())
            moved = pattern.model_copy(update={"kernels": tuple(number[trial.keys[key]] for key in pattern.kernels)})
            first.setdefault(identity, moved)
            count[identity] += pattern.steps
    return DecodeSteps(
        source=", ".join(dict.fromkeys(trial.source for trial in trials)),
        keys=keys,
        patterns=tuple(first[trial].model_copy(update={"steps": steps}) for trial, steps in count.most_common()),
        **{name: tuple(chain.from_iterable(getattr(trial, name) for trial in trials)) for name in COLUMNS},
        gap_ns=_joined(trials, [trial.gap_ns for trial in trials]),
        role_ns=_joined(trials, [trial.role_ns for trial in trials]),
        key_launches=tuple(launches),
        key_ns=tuple(times),
        key_shapes=pooled_shapes([(trial.keys, trial.key_shapes) for trial in trials], number),
        copy_bytes=dict(sum((Counter(trial.copy_bytes) for trial in trials), Counter())),
        moves=pooled_moves([trial.moves for trial in trials]),
        waits=sum(waits) if len(waits) == len(trials) else None,
        held=tuple(what for what in trials[0].held if all(what in trial.held for trial in trials)),
        cautions=tuple(dict.fromkeys(chain.from_iterable(trial.cautions for trial in trials))),
        tick_ns=max(trial.tick_ns for trial in trials),
    )


COLUMNS = ("step_ns", "span_ns", "busy_ns", "kernel_ns", "slack_ns", "work_ns", "call_ns")
"""Of :class:`DecodeSteps`, an entry a step each."""


def _joined(trials: Sequence[DecodeSteps], tables: Sequence[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Columns by name, one trial after the other; 0 in the steps of a trial that does not have one."""
    names = dict.fromkeys(chain.from_iterable(tables))
    pairs = list(zip(trials, tables, strict=True))
    return {
        name: tuple(chain.from_iterable(t.get(name, (0,) * len(trial.step_ns)) for trial, t in pairs)) for name in names
    }


_in_order = operator.attrgetter("role", "place", "name")


class _Sequences:
    """The kernels of the steps chosen, step after step and device after device, each in order of start.

    Args:
        keys: Every kernel that occurs, in order of role, place and name: a build gives the same list every time.
        key: Index into ``keys`` of each kernel.
        graph: Whether a CUDA graph launched it.
        layer: Its layer, or -1.
        cuts: Where a step begins after another one.
        key_ns: Kernel time of each key.
        key_shapes: Launches of each key by shape.
    """

    def __init__(self, trace: Trace, figures: StepFigures) -> None:
        chosen = np.zeros(len(trace.steps) + 1, bool)  # the last one represents no step
        chosen[figures.step] = True
        kernels = trace.kernels.take(np.flatnonzero(chosen[trace.kernels.step]))
        kernels = kernels.take(np.lexsort((kernels.start_ns, kernels.device, kernels.step)))
        distinct, group = combinations(kernels.name, kernels.place)
        normalised, role = trace.names.normalised, trace.names.role
        named = [KernelKey(role=role[name], place=PLACES[place], name=normalised[name]) for name, place in distinct]
        self.keys = tuple(sorted(set(named), key=_in_order))
        number = {key: n for n, key in enumerate(self.keys)}
        self.key = np.array([number[key] for key in named])[group]
        self.graph = kernels.graph
        self.layer = kernels.layer
        self.cuts = np.flatnonzero(np.diff(kernels.step) | np.diff(kernels.device)) + 1
        self.key_ns = tuple(int(ns) for ns in np.bincount(self.key, kernels.duration_ns, len(self.keys)))
        self.key_shapes = shapes_by_key(trace.shapes, self.key, kernels.shape, len(self.keys))

    def patterns(self, figures: StepFigures) -> tuple[Pattern, ...]:
        """The patterns, the most frequent first; ``found`` has a row for each step here."""
        first: dict[tuple[bytes, bytes], Pattern] = {}
        count: Counter[tuple[bytes, bytes]] = Counter()
        steps = (np.split(column, self.cuts) for column in (self.key, self.graph, self.layer))
        for copies, key, graph, layer in zip(figures.copies, *steps, strict=True):
            identity = np.sort(2 * key + graph).tobytes(), copies.tobytes()
            count[identity] += 1
            if identity not in first:
                first[identity] = Pattern(
                    steps=1,
                    kernels=tuple(key.tolist()),
                    outside_graphs=tuple(np.flatnonzero(~graph).tolist()),
                    copies={kind: n for kind, n in zip(COPY_KINDS, copies.tolist(), strict=True) if n},
                    layer_begins=_layer_begins(layer),
                )
        return tuple(first[identity].model_copy(update={"steps": steps}) for identity, steps in count.most_common())


def _layer_begins(layer: NDArray[np.int16]) -> tuple[int, ...]:
    """Where each layer of a step begins and the last one ends; nothing where layers do not follow one another whole."""
    inside = np.flatnonzero(layer != NONE)
    if not len(inside) or not (np.diff(layer[inside]) >= 0).all() or len(inside) < inside[-1] - inside[0] + 1:
        return ()
    begins = inside[np.flatnonzero(np.diff(layer[inside], prepend=NONE))]
    return (*begins.tolist(), int(inside[-1]) + 1)


def _known(column: NDArray[np.int64]) -> tuple[int | None, ...]:
    return tuple(None if value == NO_TIME else value for value in column.tolist())
