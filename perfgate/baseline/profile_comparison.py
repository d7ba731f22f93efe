"""A head alone, judged by what repeats exactly: calls against a stored profile, kernels against the envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perfgate.baseline.exact_profile import Profile, capacity_of, gpu_of
from perfgate.judge.cell_verdict import judge_cells, judge_together
from perfgate.judge.evidence import Evidence, RecordSide
from perfgate.judge.outcome import Finding, Outcome
from perfgate.judge.unused_path import alone_unused, not_measured
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Kind, Trial
from perfgate.models import Note
from perfgate.record.identity import Measured
from perfgate.record.run_record import Record, Run
from perfgate.trace.difference import range_changes
from perfgate.units import format_value


def capacity_changed(
    before: Mapping[str, tuple[float, float]], head: Mapping[str, tuple[float, float]]
) -> Iterator[Note]:
    """What of an engine's memory the head holds otherwise: the least and the most of each, by name of the metric."""
    for change in range_changes(before, head, lambda name, value: format_value(value, METRICS[name].unit)):
        yield Note(code="engine-state-changed", text=change.line)


@dataclass(frozen=True, kw_only=True)
class ProfiledEvidence(Evidence):
    """One side, whose calls are held against a stored profile where one fits.

    Args:
        profiles: Those of the cell, of other GPUs and other versions of Python too.
    """

    profiles: Sequence[Profile] = ()

    @cached_property
    def unused_apart(self) -> Note | None:
        """The same of the head and its anchor, or of the head and a build that is stored."""
        if not self.sides:
            return None
        record = self.record
        if record.alone is None:
            return not_measured({side: RecordSide(record, side) for side in record.subjects})
        return alone_unused(record, self.sides["head"].name, self.stored)

    @property
    def stored(self) -> Sequence[Mapping[str, str]]:
        """The packages of the builds that it is held against, as far as a build is told by them alone."""
        return [profile.accepted[-1].versions for profile in self.fitting]

    def held(self, name: str, kind: Kind = "", of: Callable[[Trial], Any] | None = None) -> dict[Side, list[Any]]:
        """What the profile of this GPU and Python holds takes the place of a base's."""
        measured, stored = super().held(name, kind, of), self.in_profiles(name)
        return {"base": stored, **measured} if stored and measured.get("head") else measured

    def in_profiles(self, name: str) -> list[Any]:
        """What fitting profiles hold of that name: calls."""
        return [profile.calls for profile in self.fitting] if name == "calls" else []

    @cached_property
    def fitting(self) -> list[Profile]:
        """The profiles of this GPU whose calls were counted as the head's were."""
        counted = {calls.key for calls in super().held("calls").get("head", ())}
        return [
            profile for profile in self.profiles if profile.gpu == gpu_of(self.record) and profile.calls.key in counted
        ]


@dataclass(frozen=True, kw_only=True)
class ProfileEvidence(ProfiledEvidence):
    """The same where nothing but the profile can be the base: of kernels, counters and memory, too."""

    exact: bool = True

    def in_profiles(self, name: str) -> list[Any]:
        """Calls, and what was launched and counted where it was traced and counted alike."""
        mine = Measured.of(self.cell)
        if name == "launched":
            return [profile.ranks for profile in self.fitting if profile.ranks and profile.cell.tracing == mine.tracing]
        if name == "counted":
            return [
                step for profile in self.fitting if profile.cell.counting == mine.counting for step in profile.counted
            ]
        return super().in_profiles(name)

    def cautions(self) -> Iterator[Note]:
        """Memory has no price in a decode step, so other amounts of it are told and block nothing."""
        yield from super().cautions()
        head = capacity_of(self.trials("traced")["head"])
        for profile in self.fitting:
            yield from capacity_changed(profile.capacity, head)

    @property
    def unjudged(self) -> Finding | None:
        """Why nothing is judged: nothing was measured, or there is no profile."""
        if self.unused_apart is not None:
            return Finding("not-measured", (self.unused_apart,))
        if not self.sides or self.stops:
            return self.stopped
        calls = self.held("calls")
        if calls["head"] and "base" not in calls:
            names = "; ".join(f"{profile.gpu or 'CPU'}, {profile.calls.key}" for profile in self.profiles)
            text = f"there are profiles of {names}" if names else "there is no profile of this cell"
            return Finding("not-comparable", (Note(code="no-profile", text=text),))
        return None

    def due(self, kind: Kind) -> bool:
        """Calls always are: a head that was not counted is not measured."""
        return kind == "called" or super().due(kind)


def judge_profiles(run: Run, records: Mapping[str, Record], profiles: Mapping[str, Sequence[Profile]]) -> Outcome:
    """Judge a run of one side against the profiles that it keeps, by cell_id."""
    evidence = []
    for cell in run.plan.cells:
        record = records.get(cell.cell_id)
        sides: dict[Side, RecordSide] = {"head": RecordSide(record, run.alone or "head")} if record else {}
        evidence.append(ProfileEvidence(cell=cell, sides=sides, run=run.name, profiles=profiles.get(cell.cell_id, ())))
    return judge_cells(run.name, run.plan, judge_together(evidence, run.plan))
