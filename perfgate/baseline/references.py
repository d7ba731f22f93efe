"""What a run is held against instead of another build: stored baselines and exact profiles, for the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfgate.baseline.confirmation import decided_by_pairs
from perfgate.baseline.exact_profile import find_profiles, keep_profiles, kept_profiles
from perfgate.baseline.profile_comparison import judge_profiles
from perfgate.baseline.store import Stored, find, keep, kept
from perfgate.baseline.stored_visit import Build
from perfgate.baseline.visit_comparison import compare_with_baseline, judge_against
from perfgate.errors import NotComparableError, UsageError
from perfgate.judge.outcome import Outcome
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Builds, runs_already

__all__ = ["compare_with_baseline", "found_for", "judged", "require_profiles", "stored_for"]


def found_for(
    run: Run, subjects: Builds, against: Path | None, profiles: Path | None
) -> dict[str, Callable[[Path], Any]]:
    """What a run is held against, by the field of its manifest: each copies it into a run folder and says what it is.

    Raises:
        UsageError: No verdict of a baseline could rest on such a run.
        RecordError: A baseline is broken.
    """
    sources: dict[str, Callable[[Path], Any]] = {}
    if profiles is not None:
        files = find_profiles(profiles, run.cells)
        sources["profiles"] = lambda folder: keep_profiles(folder, files)
    if against is not None:
        stored = stored_for(against, run.cells, subjects, quick=run.quick)
        sources["against"] = lambda folder: keep(folder, stored)
    return sources


def stored_for(
    against: Path, cells: Sequence[Cell], subjects: Builds, *, quick: bool = False
) -> dict[str, tuple[Stored, ...]]:
    """The baselines that a head may be held against, by cell_id.

    Raises:
        UsageError: No verdict of a baseline could rest on such a run.
        RecordError: A baseline is broken.
    """
    if quick or runs_already(subjects):
        raise UsageError("against a baseline a run is never quick, nor of a server that runs already")
    if len(subjects) > 1 and Build.asked_for(subjects["base"], {}).opaque:
        raise UsageError(
            "the anchor has path= or env= of its own, by which two builds could be one name",
            remedy="Install it into an environment of its own, or build it from a ref: [subjects.anchor] with ref=.",
        )
    return find(against, cells)


def require_profiles(folder: Path, cells: Sequence[Cell]) -> None:
    """See that every cell has a profile.

    Raises:
        NotComparableError: ``no-profile``: a cell has none, on whatever GPU.
        RecordError: A profile cannot be read.
    """
    for cell in cells:
        if not find_profiles(folder, [cell])[cell.cell_id]:
            where = f"{folder}: {cell.name}"
            raise NotComparableError("there is no profile of this cell", where=where, code="no-profile")


def judged(folder: Path, run: Run, records: Mapping[str, Record]) -> Outcome:
    """Judge a run folder by the baselines or profiles that it keeps; ``records`` are by cell_id.

    Raises:
        RecordError: A baseline or a profile in the folder is broken.
    """
    if run.against is None:
        return judge_profiles(run, records, kept_profiles(folder, run))
    baselines = kept(folder, run)
    outcome = judge_against(run, records, baselines, kept_profiles(folder, run))
    return decided_by_pairs(folder, run, outcome, records, baselines)
