"""One side as it is held against a stored baseline, whose visits take the place of pairs.

The unit is the visit (:mod:`perfgate.stats.prediction`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfgate.baseline.exact_profile import CAPACITIES
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.occupations import held_against, typical
from perfgate.baseline.pairs_in_states import PairsInStates
from perfgate.baseline.profile_comparison import ProfiledEvidence, capacity_changed
from perfgate.baseline.stored_visit import Build, card_of, kept_values, outputs
from perfgate.baseline.visit_series import VisitSeries
from perfgate.judge.cautions import TrialsBySide, record_cautions, side_cautions, why_missing
from perfgate.judge.cell_facts import GpuOutcome
from perfgate.judge.evidence import RecordSide, T
from perfgate.judge.machine_states import Labeller, follows_states
from perfgate.judge.outcome import Finding
from perfgate.machine.fingerprint import comparable
from perfgate.metrics.catalogue import METRICS, Metric, split_name
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Kind, Trial
from perfgate.models import Note
from perfgate.record.identity import Measured, profiled_otherwise
from perfgate.scenario.plan import GatePlan

FAR = 0.05
"""A head further than this from its anchor is cautioned: what a machine does to one it may do less to the other."""
UNSALTED = "-"
"""A baseline without salt knows no cards: a head's own is then none of its visits'."""


@dataclass(frozen=True, kw_only=True)
class VisitEvidence(ProfiledEvidence):
    """The evidence of one side, the head, and of a baseline; its calls are held against a profile.

    Args:
        baselines: What it may be held against: of other machines too.
    """

    baselines: Sequence[Baseline] = ()

    @cached_property
    def baseline(self) -> Baseline | None:
        """The one that fits; ``None`` where there is none, or the side was cut short: then nothing is judged."""
        whole = self.sides and not self.stops and not self.side.short_of
        fitting = (baseline for baseline in self.baselines if not misfits(baseline, self.side))
        return next(fitting, None) if whole else None

    @property
    def unjudged(self) -> Finding | None:
        """Why it is held against no baseline; a side that was cut short is not, lest somebody stops where it suits."""
        if self.unused_apart is not None:
            return Finding("not-measured", (self.unused_apart,))
        if self.baseline is not None:
            return None
        if not self.sides or self.stops:
            return self.stopped
        if short_of := self.side.short_of:
            short = " and ".join(f"{taken} of {due} {kind}" for kind, taken, due in short_of)
            of = "pairs" if len(self.record.subjects) > 1 else f"trials of the {self.side.name}"
            return Finding("not-measured", (Note(code="too-few-pairs", text=f"{short} {of}, cut short"),))
        if not self.baselines:
            note = Note(code="no-baseline", text=f"{self.cell.name} has none yet, on any machine")
            return Finding("not-comparable", (note,))
        same_cell = not any(baseline.cell.differences(Measured.of(self.cell)) for baseline in self.baselines)
        elsewhere = same_cell and all(_elsewhere(baseline, self.side) for baseline in self.baselines)
        lines = [f"{baseline.machine_class}: {'; '.join(misfits(baseline, self.side))}" for baseline in self.baselines]
        text = "\n".join([f"none of {len(lines)} baselines fits:", *lines])
        code = "different-machines" if elsewhere else "different-cells"
        return Finding("not-comparable", (Note(code=code, text=text),))

    @property
    def stored(self) -> Sequence[Mapping[str, str]]:
        """Those of the profiles, and of the build that was promoted last, where nothing else tells it from others."""
        last = self.baseline.build if self.baseline else None
        plain = [] if last is None or last.opaque or last.source or last.args else [last.versions]
        return [*super().stored, *plain]

    @property
    def side(self) -> RecordSide:
        """The head."""
        return self.sides["head"]

    @property
    def versions(self) -> dict[Side, dict[str, str]]:
        """Packages of the head as measured, and of the build that was promoted last."""
        before: dict[Side, dict[str, str]] = {"base": self.baseline.build.versions} if self.baseline else {}
        return before | super().versions

    def series(self, gate: GatePlan) -> VisitSeries:
        """The values of a gated metric beside those of each visit."""
        metric = gate.gate.measured
        if self.baseline is None:
            return VisitSeries(gate)
        if not self.baseline.values(metric.name):
            return VisitSeries(gate, missing=Note(code="no-baseline", text=f"no visit carries {metric.name}"))
        trials = self._trials(metric.kind)
        sets, values = self._held(metric)
        head = values if self.anchor is None else typical(values)
        # Every pair has a value, and none a state of the GPU that both of its trials had.
        states = self.in_states
        apart = not head and states is not None and states.ratios(metric) == () and bool(self._known_pairs(metric))
        if not trials or not (head or apart) or (self.anchor is None and len(head) < len(trials)):
            _, role = split_name(metric.name)
            missing = Note(code="metric-missing", text=f"trials carry no {metric.name}")
            if role is not None and metric.kind != "timed" and trials:
                text = f"the baseline runs kernels of role {role}, the head none"
                missing = Note(code="metric-unusable", text=text)
            return VisitSeries(gate, missing=why_missing(metric, {"head": trials}) or missing)
        # A baseline keeps values and no trials: its instrument is taken for the one at hand. A ratio has two readings.
        step = max(map(metric.resolution, trials)) * (1 if self.anchor is None else 2)
        if not sets:
            beside = f" beside {self.anchor.title}" if self.anchor else ""
            lost = any(metric.name in visit.anchor.in_states for visit in self.baseline.visits if visit.anchor)
            finding = f"has a pair in one state of the GPU to tell {metric.name}" if lost else f"carries {metric.name}"
            return VisitSeries(gate, missing=Note(code="no-baseline", text=f"no visit{beside} {finding}"))
        visits, *further = sets
        others = [kept for visits in further if (kept := tuple(visit for visit in visits if min(visit) > 0))]
        means = tuple(map(_mean, visits))
        untold = self.anchor is not None and not self.told and follows_states(metric)
        return VisitSeries(
            gate,
            means,
            tuple(head),
            visits=visits,
            others=tuple(others),
            resolution=step,
            beside_anchor=self.anchor is not None,
            pairs=tuple(values) if untold else (),
        )

    def _known_pairs(self, metric: Metric) -> list[tuple[float, float]]:
        """Anchor and head of each pair; none where a pair lacks a value."""
        pairs = [tuple(map(metric.summarise, pair)) for pair in self.record.pairs(metric.kind)]
        rows = [(beside, head) for beside, head in pairs if beside is not None and head is not None and beside > 0]
        return rows if len(rows) == len(pairs) else []

    @cached_property
    def anchor(self) -> Build | None:
        """What was measured in pairs with the head, if visits were measured in pairs with it too."""
        if self.baseline is None or not self.side.fixed or self.record.alone is not None:
            return None
        beside = Build.of(self.record, "base")
        return beside if any(visit.is_beside(beside) for visit in self.baseline.visits) else None

    def _trials(self, kind: Kind) -> Sequence[Trial]:
        return self.side.trials(kind) if self.anchor is None else [head for _, head in self.record.pairs(kind)]

    def _held(self, metric: Metric) -> tuple[list[tuple[tuple[float, ...], ...]], Sequence[float]]:
        """Sets of visits, see :func:`held_against`, and the head's values, one a trial or a pair.

        Beside an anchor both are what they would be where the anchor takes as long as it took today.
        """
        baseline, (_, head) = self.baseline, super().values(metric)
        if baseline is None:
            return [], head
        card = card_of(self.record.visits, baseline.salt or UNSALTED)
        if self.anchor is None:
            return held_against(baseline.occupations, metric.name, card), head
        if not (pairs := self._known_pairs(metric)):
            return [], []
        today = statistics.geometric_mean([beside for beside, _ in pairs])
        within = self.in_states.ratios(metric) if self.in_states else None
        ratios = within if within is not None else tuple(head / beside for beside, head in pairs)
        sets = held_against(baseline.occupations, metric.name, card, self.anchor, len(ratios) or None)
        scaled = [tuple(tuple(ratio * today for ratio in visit) for visit in visits) for visits in sets]
        return scaled, [ratio * today for ratio in ratios]

    @cached_property
    def told(self) -> bool:
        """Whether it is known in which state of the GPU each trial beside the anchor was."""
        labeller = Labeller.of(self.record)
        return bool(self.in_states or (labeller and labeller.one_state))

    @cached_property
    def in_states(self) -> PairsInStates | None:
        """The head's pairs with its anchor where the GPU changed its state; ``None`` where nobody saw that."""
        return PairsInStates.of(self.record) if self.anchor else None

    def values(self, metric: Metric) -> tuple[Sequence[float], Sequence[float]]:
        """A mean of each visit, and the head's values; neither where only one has any."""
        sets, head = self._held(metric)
        if self.baseline is None:
            return (), head
        head = head if self.anchor is None else typical(head)
        means = [_mean(visit) for visit in sets[0]] if sets else []
        return (means, head) if means and head else ((), ())

    def gpus(self, kind: Kind) -> dict[Side, GpuOutcome]:
        """What the head's GPUs did, and the base's in the visit whose clock is the median."""
        if kind == "traced" and self.side.trials("timed"):
            return {}
        visits = self.baseline.visits if self.baseline else ()
        gpus = sorted((visit.gpu for visit in visits if visit.gpu), key=lambda gpu: gpu.sm_mhz)
        before: dict[Side, GpuOutcome] = {"base": gpus[(len(gpus) - 1) // 2]} if gpus else {}
        return before | super().gpus("timed")

    def read(self, kind: Kind, of: Callable[[Trial], T | None]) -> dict[Side, list[T]]:
        """What the head's trials of a kind hold, and the baseline's if it keeps that."""
        before: dict[Side, list[T]] = {}
        if self.baseline is not None and (trials := self._trials(kind)):
            begun = self.baseline.epoch[0]
            kept_of_it = {"decode": begun.decode, "counted": begun.counted, "calls": None, "ranks": ()}
            kept = of(trials[0].model_copy(update=kept_of_it))
            before = {"base": [kept]} if kept is not None else {}
        return before | super().read(kind, of)

    def due(self, kind: Kind) -> bool:
        """Whether decode steps, or counters, are judged; a declared envelope holds for a head alone."""
        declared = self.cell.kernels is not None and self.cell.kernels.declares_envelope
        return super().due(kind) or (kind == "traced" and declared)

    def cautions(self) -> Iterator[Note]:
        """Everything about the head's trials, and about its build beside the baseline's."""
        timed, traced = self.side.trials("timed"), self.side.trials("traced")
        if alone := self.side.fixed and bool(timed):
            yield from record_cautions(self.record)
        ours: TrialsBySide = {"base": [], "head": timed}
        yield from side_cautions(self.cell.work, ours, {"base": [], "head": [] if alone else traced})
        if self.baseline is None:
            return
        yield from self._anchor_cautions()
        yield from self._capacity_cautions(self.baseline)
        before = {visit.outputs for visit in self.baseline.visits if visit.outputs}
        now = outputs(timed or traced)
        if before and now and now not in before:
            yield Note(code="outputs-differ", text="the head generated other tokens than any visit of the baseline")
        if self.baseline.build.same(Build.of(self.side.record, self.side.name)):
            yield Note(code="same-subject", text="by all that can be told, the build that was promoted last")

    def _capacity_cautions(self, baseline: Baseline) -> Iterator[Note]:
        """What an engine holds in memory repeats: it is told where no visit held it and no gate judges it."""
        judged = {gate.gate.measured.name for gate in self.cell.gates}
        head, before = {}, {}
        for name in CAPACITIES:
            sizes = kept_values(METRICS[name], self._trials(METRICS[name].kind))
            stored = [value for visit in baseline.visits for value in visit.values.get(name, ())]
            if sizes and stored and name not in judged:
                head[name], before[name] = (min(sizes), max(sizes)), (min(stored), max(stored))
        yield from capacity_changed(before, head)

    def _anchor_cautions(self) -> Iterator[Note]:
        if not self.side.fixed or self.record.alone is not None:
            return
        if self.anchor is None:
            text = f"no visit was measured beside {Build.of(self.record, 'base').title}: times are compared"
            yield Note(code="anchor-weak", text=text)
            return
        for gate in self.cell.gates:
            metric = gate.gate.measured
            pairs = (tuple(map(metric.summarise, pair)) for pair in self.record.pairs(metric.kind))
            ratios = [head / beside for beside, head in pairs if beside and head and min(beside, head) > 0]
            off = statistics.geometric_mean(ratios) - 1 if ratios else 0.0
            if abs(off) > FAR:
                yield Note(code="anchor-weak", text=f"{metric.name} of the head is {off * 100:+.1f} % off the anchor's")


def misfits(baseline: Baseline, side: RecordSide) -> tuple[str, ...]:
    """Why a side must not be held against a baseline, what the baseline has first; empty where it may."""
    cell, stored = side.record.cell, baseline.cell
    differences = (*stored.differences(Measured.of(cell)), *_elsewhere(baseline, side))
    return tuple(dict.fromkeys((*differences, *profiled_otherwise(cell, stored))))


def _elsewhere(baseline: Baseline, side: RecordSide) -> list[str]:
    """What tells the machines apart; nothing where they may be compared."""
    return [text for visit in side.record.visits for text in comparable(baseline.machine, visit.machine)]


def _mean(values: Sequence[float]) -> float:
    """Geometric, so that the mean of visits is that of their logarithms; what has no logarithm is its own fault."""
    return statistics.geometric_mean(values) if min(values) > 0 else min(values)
