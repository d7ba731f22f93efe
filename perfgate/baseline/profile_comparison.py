"""A head alone, judged by what repeats exactly: calls against a stored profile, kernels against the envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfgate.baseline.exact_profile import Profile, gpu_of
from perfgate.calls.host_calls import HostCalls
from perfgate.judge.cell_verdict import judge_cells, judge_together
from perfgate.judge.evidence import Evidence, RecordSide
from perfgate.judge.outcome import Finding, Outcome
from perfgate.metrics.trial import Kind, Side
from perfgate.models import Note
from perfgate.record.run_record import Record, Run


@dataclass(frozen=True, kw_only=True)
class ProfiledEvidence(Evidence):
    """One side, whose calls are held against a stored profile where one fits.

    Args:
        profiles: Those of the cell, of other GPUs and other versions of Python too.
    """

    profiles: Sequence[Profile] = ()

    def calls(self) -> dict[Side, list[HostCalls]]:
        """The profile of this GPU and Python takes the place of a base."""
        own = super().calls()
        counted = {calls.key for calls in own.get("head", ())}
        known = (profile for profile in self.profiles if profile.gpu == gpu_of(self.record))
        fitting = [profile.calls for profile in known if profile.calls.key in counted]
        return {"base": fitting, **own} if fitting else own


@dataclass(frozen=True, kw_only=True)
class ProfileEvidence(ProfiledEvidence):
    """The same where nothing but the profile can be the base."""

    @property
    def unjudged(self) -> Finding | None:
        """Why nothing is judged: nothing was measured, or there is no profile."""
        if not self.sides or self.stops:
            return self.stopped
        calls = self.calls()
        if calls["head"] and "base" not in calls:
            known = "; ".join(f"{profile.gpu or 'CPU'}, {profile.calls.key}" for profile in self.profiles)
            text = f"there are profiles of {known}" if known else "there is no profile of this cell"
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
