"""What a cell is judged by: sides of records, in pairs of one run or measured apart; and what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from perfgate.judge.cautions import (
    TrialsBySide,
    drawn_once,
    gpu_outcomes,
    record_cautions,
    side_cautions,
    why_missing,
    why_unusable,
)
from perfgate.judge.cell_facts import GpuOutcome
from perfgate.judge.machine_states import Labeller
from perfgate.judge.memory_growth import growth_cautions
from perfgate.judge.outcome import Finding
from perfgate.judge.rule import Judged, Series
from perfgate.judge.sign_series import by_sign
from perfgate.judge.slow_share import slow_share
from perfgate.judge.state_series import by_state
from perfgate.judge.unused_path import not_measured, unused_paths
from perfgate.metrics.catalogue import Metric
from perfgate.metrics.kinds import TRIAL_KINDS, of_kinds
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import KINDS, Kind, Trial
from perfgate.models import Note
from perfgate.record.dropped_pairs import CHANGED
from perfgate.record.run_record import Record, record_digest
from perfgate.record.unused_folders import UNUSED
from perfgate.scenario.plan import Cell, GatePlan, orders_bound

T = TypeVar("T")


@dataclass(frozen=True)
class RecordSide:
    """One side of a record.

    Args:
        record: The record.
        name: Which side of it.
        fixed: Whether a number of pairs was set beforehand, as beside an anchor, and not by looks.
    """

    record: Record
    name: Side
    fixed: bool = False

    def trials(self, kind: Kind) -> list[Trial]:
        """Its valid trials of a kind."""
        return self.record.judged_trials(self.name, kind)

    @property
    def short_of(self) -> tuple[tuple[Kind, int, int], ...]:
        """Kinds of which fewer trials were taken than are due: taken and due; empty where it was measured to its end.

        A quick look and a run that was cut short, before its traced or counted trials too, have some.
        """
        cell = self.record.cell
        due = cell.due_alone if self.fixed or self.record.alone is not None else cell.due_in_pairs
        counts = ((kind, self.record.measured(kind), due(kind)) for kind in KINDS)
        return tuple(count for count in counts if count[1] < count[2])


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is held against each other, by side.

    Args:
        cell: The cell, whose gates are judged.
        sides: Both, or the only one; none where no trial was taken.
        paired: Whether both sides were taken in pairs of one run.
        quick: Whether that run was a quick one.
        exact: Whether nothing is timed, and what repeats exactly is all there is to judge.
        run: Its name; empty where different ones measured the sides.
        head: Which of several heads of that run it is of; empty where there is one.
        kept: The record as the run keeps it, of which the sides may be one comparison of several.
    """

    cell: Cell
    sides: Mapping[Side, RecordSide] = field(default_factory=dict)
    paired: bool = False
    quick: bool = False
    exact: bool = False
    run: str = ""
    head: str = ""
    kept: Record | None = None

    @property
    def record(self) -> Record:
        """The record of a run, or the last of several."""
        return [*self.sides.values()][-1].record

    @property
    def digest(self) -> str:
        """The digest of the record judged, or of both with their sides."""
        if self.paired or len(self.sides) < 2:  # noqa: PLR2004 (base and head)
            return record_digest(self.kept or self.record) if self.sides else ""
        return " ".join(f"{record_digest(side.record)}:{side.name}" for side in self.sides.values())

    @property
    def stops(self) -> tuple[Note, ...]:
        """Why measuring ended early, for each record that did."""
        records = {id(side.record): side.record for side in self.sides.values()}.values()
        return tuple(Note(code=record.stopped.code, text=record.stopped.text) for record in records if record.stopped)

    @property
    def stopped(self) -> Finding:
        """What a cell is whose measuring ended early, or never began."""
        reasons = self.stops or (NOT_STARTED,)
        mine = any(reason.code == "internal-error" for reason in reasons)
        return Finding("internal-error" if mine else "not-measured", reasons)

    @property
    def unjudged(self) -> Finding | None:
        """Why nothing is held against anything; ``None`` where there are both sides, each of one build."""
        if any(stop.code == CHANGED for stop in self.stops):  # nobody knows which of its trials ran what
            return self.stopped
        if self.unused_apart is not None:
            return Finding("not-measured", (self.unused_apart,))
        if self.sides.keys() >= {*SIDES}:
            return None
        if not self.sides or self.stops:
            return self.stopped
        taken = {kind: sum(map(len, self.trials(kind).values())) for kind in KINDS}
        profiled = "".join(f" and {taken[kind]} {kind}" for kind in KINDS[1:] if taken[kind])
        text = f"{taken['timed']} trials{profiled} of one subject were measured"
        return Finding("not-comparable", (Note(code="no-counterpart", text=text),))

    @property
    def versions(self) -> dict[Side, dict[str, str]]:
        """Packages of each side as measured; in a run those of a trial that failed, where no other tells."""
        versions: dict[Side, dict[str, str]] = {}
        for name, side in self.sides.items():
            trials = [trial for trial in side.record.trials if trial.subject == side.name]
            seen = trials if self.paired else [trial for kind in KINDS for trial in side.trials(kind)]
            versions[name] = next((dict(trial.versions) for trial in seen if trial.versions), {})
        return versions

    def pairs(self, kind: Kind) -> list[tuple[Trial, Trial]]:
        """Valid pairs as (base, head); none where the sides were measured apart."""
        return self.record.pairs(kind) if self.paired and self.sides else []

    def trials(self, kind: Kind) -> TrialsBySide:
        """The trials that are judged, of base and head."""
        if self.paired:
            return {side: [pair[n] for pair in self.pairs(kind)] for n, side in enumerate(SIDES)}
        return {side: self.sides[side].trials(kind) if side in self.sides else [] for side in SIDES}

    def series(self, gate: GatePlan) -> Series:
        """The values of a gated metric.

        A look added later widens the schedule of every gate of its cell; the weights still sum to at most 1.
        """
        metric = gate.gate.measured
        if not self.sides:
            return Series(gate, missing=NOT_STARTED)
        sides = self.trials(metric.kind)
        schedule = self.record.schedule(metric.kind) if self.paired else None
        if (missing := self._missing(metric, sides)) is not None:
            return Series(gate, schedule=schedule, missing=missing)
        step = max((metric.resolution(trial) for trials in sides.values() for trial in trials), default=0.0)
        base, head = self.values(metric)
        return Series(
            gate, tuple(base), tuple(head), schedule, resolution=step, one_draw=drawn_once(self._started(metric.kind))
        )

    def _started(self, kind: Kind) -> Iterator[Trial]:
        """Trials of a kind whose engine started, those of warm-up among them."""
        for name, side in self.sides.items():
            trials = (trial for trial in side.record.trials if trial.kind == kind and trial.startup)
            yield from (trial for trial in trials if trial.subject == name)

    @property
    def heads(self) -> int:
        """How many heads the run has, among which the order of a pair is drawn."""
        return len(self.record.heads) or 1

    @property
    def orders_drawn(self) -> bool:
        """Whether both sides were taken in pairs, and the order of each was drawn on its own."""
        return self.paired and bool(self.sides) and self.record.orders == "coins"

    @property
    def orders_bound(self) -> float:
        """By what a p value by fair coins is multiplied; infinite where the order of each pair was not drawn."""
        return orders_bound(self.heads, self.record.orders)

    @cached_property
    def family(self) -> tuple[Judged, ...]:
        """What can block the cell: each gate, in each state that enough pairs have in common, and the slow share."""
        series = [by_sign(self.series(gate)) for gate in self.cell.gates]
        if self.labeller is None:
            return (*series,)
        gates = [part for whole in series for part in by_state(whole, self.labeller)]
        declared = self.record.cell.schedule("timed")
        share = slow_share(gates, self.labeller, declared, drawn=self.orders_drawn, heads=self.heads)
        return (*gates, *share)

    @cached_property
    def labeller(self) -> Labeller | None:
        """What tells the states of the timed pairs; ``None`` where nothing was taken in pairs."""
        return Labeller.of(self.record) if self.paired and self.sides else None

    def _missing(self, metric: Metric, sides: TrialsBySide) -> Note | None:
        """Why a metric is not judged, where its values are not the reason."""
        if not all(sides.values()):
            text = f"a side has no valid {metric.kind} trial"
            return None if self.paired else Note(code="metric-missing", text=text)
        if (unusable := why_unusable(metric, sides)) is not None:
            return unusable
        rows = zip(*sides.values(), strict=True) if self.paired else ([trial] for trial in chain(*sides.values()))
        lacking = [any(metric.summarise(trial) is None for trial in row) for row in rows]
        if not any(lacking):
            return None
        many = f"{sum(lacking)} of {len(lacking)} pairs" if self.paired else "some trials"
        return why_missing(metric, sides) or Note(code="metric-missing", text=f"{many} carry no {metric.name}")

    def values(self, metric: Metric) -> tuple[Sequence[float], Sequence[float]]:
        """The values of a metric that the trials of its kind have, of base and head."""
        sides = ([metric.summarise(trial) for trial in trials] for trials in self.trials(metric.kind).values())
        base, head = ([value for value in values if value is not None] for values in sides)
        return base, head

    def gpus(self, kind: Kind) -> dict[Side, GpuOutcome]:
        """What the GPUs did; where one side is alone that of its traced trials will do as well."""
        seen = self.trials(kind)
        return gpu_outcomes(seen if any(seen.values()) or len(self.sides) > 1 else self.trials("traced"))

    def read(self, kind: Kind, of: Callable[[Trial], T | None]) -> dict[Side, list[T]]:
        """What the trials of a kind hold, of each side that was measured."""
        sides = self.trials(kind)
        return {side: [read for trial in sides[side] if (read := of(trial))] for side in SIDES if side in self.sides}

    def held(self, name: str, kind: Kind = "", of: Callable[[Trial], Any] | None = None) -> dict[Side, list[Any]]:
        """What trials hold, of each side that was measured; a stored reference may take the place of a base.

        Args:
            name: A field that their kind brings, or what is made of such fields.
            kind: For what is made.
            of: What makes it of a trial.
        """
        kind = kind or next((kind.name for kind in TRIAL_KINDS.values() if name in kind.payload), "")
        return self.read(kind, of or (lambda trial: trial.payload(name)))

    def due(self, kind: Kind) -> bool:
        """Whether decode steps, or counters, are judged: where they are declared, and were to be taken."""
        if self.cell.sampling(kind) is None or self.quick:
            return False
        taken = all(self.trials(kind)[side] for side in self.sides)
        demanded = kind == "counted" and any(entry.metrics for entry in self.cell.counters)
        return taken or (bool(self.cell.looks(kind)) and (not self.record.stopped if self.paired else demanded))

    @cached_property
    def unused_apart(self) -> Note | None:
        """Why nothing is judged: the sides differ by folders of ``path=`` alone that no engine used."""
        return not_measured(self.sides)

    def unused_paths(self) -> Iterator[Note]:
        """Which folders of ``path=`` nothing used, but for those that are why nothing is judged; told there, too."""
        is_reason = self.unused_apart is not None
        return (note for note in unused_paths(self.sides) if not (is_reason and note.code == UNUSED))

    def cautions(self) -> Iterator[Note]:
        """Everything about the trials that a reader of the verdict should know."""
        if self.paired:
            yield from record_cautions(self.record)
        yield from side_cautions(self.cell.work, self.trials("timed"), self.trials("traced"))
        for cautions_of in of_kinds("cautions").values():
            yield from cautions_of(self)
        yield from growth_cautions(self.read("timed", lambda trial: trial.memory))


NOT_STARTED = Note(code="not-started", text="no trial of this cell was taken")
