"""What judging yields: verdicts per gate, cell and run, with the exit status each means.

Pure data, in the order a reader asks: what, how much, how sure, why. ``verdict.json`` is an :class:`Outcome`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from perfgate.errors import ExitStatus, Verdict
from perfgate.judge.cell_facts import (
    BaselineOutcome,
    GpuOutcome,
    MetRequests,
    Setting,
    StatesOutcome,
)
from perfgate.metrics.kinds import TrialKind, facts, joined
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Kind, key_of
from perfgate.models import Frozen, Note, absent
from perfgate.scenario.yaml_document import draft_07
from perfgate.units import Unit

PASSED: tuple[Verdict, ...] = ("pass", "improved")

WORST_FIRST: dict[Verdict, ExitStatus] = {
    "regressed": ExitStatus.REGRESSED,
    "internal-error": ExitStatus.INTERNAL_ERROR,
    "not-measured": ExitStatus.NOT_MEASURED,
    "not-comparable": ExitStatus.NOT_COMPARABLE,
    "inconclusive": ExitStatus.INCONCLUSIVE,
    "advisory": ExitStatus.INCONCLUSIVE,
    "pass": ExitStatus.PASS,
    "improved": ExitStatus.PASS,
}
"""Every verdict, worst first, with the exit status it means."""

EXACT_ENDS = ("outside-envelope", "envelope-stale", "counter-differs", "counter-out-of-bounds", "work-added")
"""Reasons that decide a cell exactly, whatever its gates say; more pairs would not change them."""


class MetricOutcome(Frozen):
    """One metric on both sides, gated or not.

    Args:
        metric: Name in :data:`perfgate.metrics.catalogue.METRICS`; a role's as ``kernel_time_per_step[gemm]``.
        unit: Base unit of ``base`` and ``head``.
        better: Direction that is better.
        base: Geometric mean of the trials' values; the arithmetic mean of values that have no ratio, like a host slack
            that is used up; ``None`` where a side has none.
        head: The same for the head.
        change: ``head / base - 1``, in the metric's own direction; ``None`` where there is no ratio.
        change_low: Lower end of an interval of the change that holds with probability 1 - alpha for all metrics of the
            cell that no gate judges, at all looks together; not written where the values are not in pairs, or below
            the first look: then nobody judged the difference.
        change_high: Its upper end.
    """

    metric: str
    unit: Unit
    better: Literal["lower", "higher"]
    base: float | None
    head: float | None
    change: float | None
    change_low: Annotated[float | None, Field(exclude_if=absent)] = None
    change_high: Annotated[float | None, Field(exclude_if=absent)] = None


class VisitsOutcome(Frozen):
    """What a baseline's visits can show of one gate; all figures are ratios minus one or natural logarithms.

    Args:
        visits: Visits that carry the metric, this baseline's current ones.
        visit_sd: Standard deviation of their means' logarithms; ``None`` for one visit, whose spread nobody knows.
        visits_to_halve: Further visits that would halve ``detectable``; ``None`` where no number of them would, or
            nothing is known.
        least_detectable: What could be detected with any number of visits.
    """

    visits: int
    visit_sd: float | None = None
    visits_to_halve: int | None = None
    least_detectable: float | None = None


class GateOutcome(MetricOutcome):
    """What one gate decided.

    Args:
        ignorable: Margin, a slowdown as a ratio minus one; the floor where that is larger.
        must_catch: Margin, as ``ignorable``.
        floor: In ``unit``; 0 where none is declared.
        where: ``file:line`` of the declaration.
        kind: The trials it is read from.
        state: ``slow`` or ``fast``, where the machine had two states and only trials in this one are compared; ``both``
            for the mean over the states that both trials of a pair have; empty where all pairs count as they are.
        verdict: This gate's own.
        would_be: For an advisory one, the verdict that the same figures would mean if they could block.
        pairs: Pairs (unpaired: trials of the smaller side; against a baseline: its visits) behind the figures; 0 below
            the first look.
        passed_at: Pairs of the first look at which it passed; later looks may still block it, and where they
            show two states of the machine, its gates in these pass anew.
        change_low: End of the interval towards smaller values, own direction; ``None`` where this look has no bound.
        change_high: End towards larger values.
        p: Running p of "slowdown at most ignorable"; blocked when it is at most ``block_level``.
        block_level: Holm's threshold for this gate given the others.
        q: Running p of "slowdown at least must_catch"; passed when it is at most beta.
        detectable: Slowdown that this look, or where it cannot block the first one that can, blocks with probability
            1 - beta given the spread seen; a ratio minus one. ``None`` where no look can block, and below four pairs.
        detectable_at: Pairs of that look; not written where it is this one.
        pair_sd: Standard deviation of the pairs' log ratios.
        carried_sd: Standard deviation that the error has besides, whatever the number of pairs: what compilations of
            one build differ by.
        visits: What a baseline's visits can show; ``None`` where there is no baseline.
        reasons: Why it is neither pass nor regressed.
        cautions: What to know about it all the same.
    """

    ignorable: float
    must_catch: float
    floor: float
    where: str
    kind: Kind = "timed"
    state: Literal["", "slow", "fast", "both"] = ""
    verdict: Verdict
    would_be: Verdict | None = None
    pairs: int = 0
    passed_at: int | None = None
    change_low: float | None = None
    change_high: float | None = None
    p: float = 1.0
    block_level: float = 0.0
    q: float = 1.0
    detectable: float | None = None
    detectable_at: Annotated[int | None, Field(exclude_if=operator.not_)] = None
    pair_sd: float | None = None
    carried_sd: Annotated[float, Field(exclude_if=operator.not_)] = 0.0
    visits: VisitsOutcome | None = None
    reasons: tuple[Note, ...] = ()
    cautions: tuple[Note, ...] = ()

    def slowdown(self, change: float) -> float:
        """A change in the metric's own direction as a slowdown: positive is worse."""
        return change if self.better == "lower" else 1 / (1 + change) - 1 if change > -1 else math.inf

    @property
    def slowdown_bounds(self) -> tuple[float | None, float | None]:
        """The interval as slowdowns: turned where higher is better; ``None`` where this look has no bound."""
        low, high = (None if end is None else self.slowdown(end) for end in (self.change_low, self.change_high))
        return (low, high) if self.better == "lower" else (high, low)

    @property
    def limit(self) -> float:
        """The change, in the metric's own direction, that is a slowdown by ``must_catch``."""
        return self.must_catch if self.better == "lower" else -self.must_catch / (1 + self.must_catch)

    def recoded(self, code: str, new_code: str) -> Self:
        """With another code for a reason, whose remedy differs with what was measured."""
        notes = (note.model_copy(update={"code": new_code}) if note.code == code else note for note in self.reasons)
        return self.model_copy(update={"reasons": tuple(notes)})


@dataclass(frozen=True)
class Finding:
    """What one look at a cell found, beside its gates.

    Args:
        verdict: ``None`` where it decides nothing.
        reasons: Why it is not a pass.
        cautions: What to know all the same.
        shown: Fields of the cell's outcome that a kind brings.
    """

    verdict: Verdict | None = None
    reasons: tuple[Note, ...] = ()
    cautions: tuple[Note, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)


def states_told(gates: Sequence[GateOutcome]) -> set[str]:
    """The states of the machine of which each metric that was compared within them says something."""
    metrics = {gate.metric for gate in gates if gate.state}
    rows = [{str(gate.state) for gate in gates if gate.metric == metric} for metric in metrics]
    return set.intersection(*rows) - {"both"} if rows else set()


def _looks(kind: TrialKind) -> dict[str, Any]:
    """How many valid pairs of a kind were measured, and how many are due next; neither is written where it is none."""
    return {
        key_of(kind.name, "{}pairs"): Annotated[int, Field(default=0, exclude_if=operator.not_)],
        key_of(kind.name, "next_{}look"): Annotated[int | None, Field(default=None, exclude_if=operator.not_)],
    }


# Other kinds bring their counts of pairs, and what they show.
@joined(("next_counted_look", _looks), ("counters", facts))
class CellOutcome(Frozen):
    """What one cell decided: the worst of its gates, or why it has none.

    Beside these it has the fields that other kinds of trials bring, not written where there are none of a kind: its
    pairs and next look, as ``counted_pairs`` and ``next_counted_look`` are, and what is shown of it.

    Args:
        name: The cell's name; with that of the head before it where there are several.
        cell_id: The cell.
        head: Which of several heads it is of; not written where there is one.
        record: Digest of the record judged; empty where there is none.
        verdict: Worst of the gates.
        pairs: Valid timed pairs measured.
        next_look: Pairs at which the next decision is due; ``None`` when the sequence is closed or used up.
        traced_pairs: Valid traced pairs measured.
        next_traced_look: Traced pairs at which the next decision on kernels is due; ``None`` as for ``next_look``.
        counted_pairs: Valid counted pairs measured.
        next_counted_look: Counted pairs at which the next decision on counters is due; ``None`` as for ``next_look``.
        versions: Packages of each side as measured.
        built_from: Of each side that was built from a git ref, its commit, with a digest of uncommitted changes.
        gates: In the scenario's order.
        ungated: Every other metric measured, for reading only.
        gpus: What each side's GPUs did; empty where engines ran on the CPU.
        states: Where the machine had two; ``None`` where one was seen.
        floors: The least time of each side's decode steps; empty where that is unknown.
        met: By gate on goodput, how many requests met its objective; not written where there is no such gate.
        attribution: Where a difference in decode steps comes from; ``None`` without traced pairs.
        counters: What ncu counted; ``None`` without counted trials.
        baseline: What the head was held against, where that was no base measured beside it.
        spent: What share of either error rate its looks may use, where some were added; not written where none was.
        setting: What the figures are of; ``None`` for figures from elsewhere, or where nothing was measured.
        reasons: Why the cell as a whole is not judged.
        cautions: What to know about the cell.
    """

    name: str
    cell_id: str
    head: Annotated[str, Field(exclude_if=operator.not_)] = ""
    record: str
    verdict: Verdict
    pairs: int
    next_look: int | None
    traced_pairs: int = 0
    next_traced_look: int | None = None
    counted_pairs: int = 0
    next_counted_look: int | None = None
    versions: dict[Side, dict[str, str]]
    built_from: dict[Side, str] = {}
    gates: tuple[GateOutcome, ...]
    ungated: tuple[MetricOutcome, ...]
    gpus: dict[Side, GpuOutcome] = {}
    states: StatesOutcome | None = None
    floors: dict[Side, Floor] = {}
    met: Annotated[dict[str, dict[Side, MetRequests]], Field(exclude_if=operator.not_)] = {}
    attribution: Any = None
    counters: Any = None
    baseline: BaselineOutcome | None = None
    spent: Annotated[float, Field(exclude_if=operator.not_)] = 0.0
    setting: Setting | None = None
    reasons: tuple[Note, ...] = ()
    cautions: tuple[Note, ...] = ()

    def pairs_of(self, kind: Kind) -> int:
        """Valid pairs of a kind measured."""
        pairs: int = getattr(self, key_of(kind, "{}pairs"))
        return pairs

    def fact(self, name: str) -> Any:
        """What a field holds that a kind brings; ``None`` where that is not known."""
        return getattr(self, name, None)

    def next_look_at(self, kind: Kind) -> int | None:
        """Pairs of a kind at which the next decision is due; ``None`` where none is."""
        next_look: int | None = getattr(self, key_of(kind, "next_{}look"))
        return next_look

    def undecided_in(self, kind: Kind) -> bool:
        """Whether more pairs of a kind could still decide a gate; a regression or the envelope decides the cell.

        A gate without data must not end the search of the others.
        """
        decided = any(gate.verdict == "regressed" for gate in self.gates)
        decided |= any(reason.code in EXACT_ENDS for reason in self.reasons)
        return not decided and "inconclusive" in {gate.verdict for gate in self.gates if gate.kind == kind}


class Outcome(Frozen):
    """A run's verdict; ``verdict.json`` is this, and it is the authority.

    Args:
        run: Name of the run, or of what was compared.
        perfgate: Version that judged.
        verdict: The worst of all cells.
        exit_status: What the process ends with.
        would_be: For an advisory outcome, the verdict that the same figures would mean if they could block.
        alpha: Declared probability of any false block in this run.
        beta: Declared probability of passing a gate that regressed by must_catch.
        cells: In the plan's order.
        reasons: Why the run as a whole is not judged.
    """

    format: Literal["perfgate-verdict/1"] = "perfgate-verdict/1"
    run: str
    perfgate: str
    verdict: Verdict
    exit_status: int
    would_be: Verdict | None = None
    alpha: float
    beta: float
    cells: tuple[CellOutcome, ...]
    reasons: tuple[Note, ...] = ()


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst by declared order; nothing at all is not measured, never a pass.

    ``improved`` counts only beside other passes: one improvement among passes makes the whole improved.
    """
    distinct = set(verdicts)
    if not distinct:
        return "not-measured"
    if distinct <= {"pass", "improved"}:
        return "improved" if "improved" in distinct else "pass"
    return next(verdict for verdict in WORST_FIRST if verdict in distinct)


def verdict_schema() -> dict[str, Any]:
    """The format of ``verdict.json`` as JSON Schema draft-07."""
    return {**draft_07(Outcome, "serialization"), "title": "perfgate verdict"}


def verdict_json(outcome: Outcome) -> str:
    """The text of ``verdict.json``: the same outcome gives the same bytes."""
    return outcome.model_dump_json(indent=1) + "\n"
