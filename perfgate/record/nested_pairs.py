"""The pairs of a run against baselines: a run of their own in a folder of that run, and what ties the two together.

Words name a subject, and a folder that they name can be edited. So the run names the pairs that were begun for it, and
heads are the same where their files were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from perfgate.errors import RecordError
from perfgate.machine.atomic_files import sha256_of
from perfgate.metrics.trial import TAKE_AGAIN, Artifact, Failure
from perfgate.record.dropped_pairs import CHANGED
from perfgate.record.measured_builds import measured_digests
from perfgate.record.run_names import RUN, run_below
from perfgate.record.run_record import Record, Run, read_records, read_run, write_run
from perfgate.scenario.subject import SHOWN

FOLDER: Final = "pairs"
"""Of a run against baselines: holds the run of its pairs."""


def run_of_pairs(folder: Path) -> Path | None:
    """The run of a run's pairs; of several the first, because a second draw of what failed would be chosen."""
    return run_below(folder / FOLDER)


def run_with_pairs(pairs: Path) -> Path | None:
    """The run that some pairs are of; ``None`` where they are a run by itself."""
    around = pairs.parent
    return around.parent if around.name == FOLDER and (around.parent / RUN).is_file() else None


def write_begun(folder: Path, run: Run) -> None:
    """Write the manifest of a run that is begun; where it is of the first pairs of another run, that names them.

    Raises:
        RecordError: The manifest of that run cannot be read.
        OSError: One of the two cannot be written.
    """
    write_run(folder, run)
    around = run_with_pairs(folder)
    if around is None or run_of_pairs(around) != folder:
        return
    visited = read_run(around)
    if visited.against is not None and visited.pairs is None:
        write_run(around, visited.model_copy(update={"pairs": Artifact.of(folder / RUN, around)}))


def named_pairs(folder: Path, run: Run) -> Path | None:
    """The run of a run's pairs; where the run names one it is that. ``None`` where none were begun.

    Raises:
        RecordError: Those that it names were removed, changed, or have others in their place.
    """
    where, named = run_of_pairs(folder), run.pairs
    if named is None:
        return where
    if where is None:
        raise RecordError("the pairs that were begun are missing", where=str(folder / named.path), remedy=TAKE_AGAIN)
    if (f"{FOLDER}/{where.name}/{RUN}", sha256_of(where / RUN)) != (named.path, named.sha256):
        text = f"is not as the pairs were begun, which are {named.path}"
        raise RecordError(text, where=str(where / RUN), remedy=TAKE_AGAIN)
    return where


def heads_of_both(run: Run, pairs: Run) -> dict[str, str]:
    """What each head of the pairs is called in the run; without those that the run does not have."""
    ours = [name or "head" for name in run.compared]
    return {
        label: name
        for label, subject in pairs.built.items()
        for name in ours
        if label != "base" and run.built.get(name) == subject
    }


def measured_before(folder: Path, run: Run) -> Iterator[tuple[Record, Mapping[str, str]]]:
    """The records of a run, and of the run that it takes pairs for; and what builds of the run are called there.

    Raises:
        RecordError: One cannot be read.
    """
    for record in read_records(folder, run):
        yield record, {label: label for label in run.built}
    if (around := run_with_pairs(folder)) is not None:
        visited, cells = read_run(around), {cell.cell_id for cell in run.cells}
        for record in read_records(around, visited):
            if record.cell.cell_id in cells:
                yield record, heads_of_both(visited, run)


def begun_too_early(pairs: Record, visited: Record) -> str:
    """When pairs of a cell were begun, where that was before the last trial of the visits; else empty."""
    begun = min((visit.t0_utc for visit in pairs.visits), default="")
    times = [visit.t0_utc for visit in visited.visits] + [trial.t0_utc for trial in visited.trials]
    return begun if any(begun < time for time in times) else ""


def stopped_if_changed(pairs: Record, visited: Record, heads: Mapping[str, str]) -> Record:
    """The record of pairs; it ends as ``subject-changed`` where a head has other files than its visits had.

    ``visited`` is of the same cell, and ``heads`` says what each head of the pairs is called there.
    """
    stops = {}
    for label, name in heads.items():
        before, now = measured_digests(visited, name), measured_digests(pairs, label)
        if before and before.keys() != now.keys() and any(trial.label == label for trial in pairs.trials):
            text = f"{label}: files {_brief(before)} in the visits, and {_brief(now)} in the pairs"
            stops[label] = Failure(code=CHANGED, text=text)
    if not stops:
        return pairs
    if pairs.several:
        return pairs.model_copy(update={"stops": {**pairs.stops, **stops}})
    return pairs.model_copy(update={"stopped": stops["head"]})


def _brief(digests: Mapping[str, object]) -> str:
    return " and ".join(digest[:SHOWN] for digest in digests) or "that are not known"
