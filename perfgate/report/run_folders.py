"""Run folders: which there are, which of them a word means, and a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfgate.errors import RecordError
from perfgate.judge.outcome import Outcome
from perfgate.machine.json_text import RECORD
from perfgate.machine.versioned_json import read_model
from perfgate.metrics.trial import Side
from perfgate.project.subjects import words
from perfgate.record.run_names import NIGHT, RUN, begun_of
from perfgate.record.run_record import read_run
from perfgate.record.stop import read_stop
from perfgate.report.document import Document, Section
from perfgate.scenario.subject import Subject

LATEST = "latest"
"""The word for the newest run folder."""
LIST = "perfgate list shows the runs; name another folder of them with --runs."


@dataclass(frozen=True)
class ListedRun:
    """A run in a folder of them.

    Args:
        name: Its folder, from theirs: a night's halves are two below the night's.
        begun: When, to the second, in UTC.
        subjects: By side; empty where the manifest cannot be read.
        heads: The names of several heads; empty where there is one.
        verdict: Of its ``verdict.json``; empty before there is one.
        stopped: Why its last visit was stopped before its end, in two words; empty where it was not.
        fault: Why the folder cannot be read; empty where it can.
    """

    name: str
    begun: datetime
    subjects: Mapping[Side, Subject]
    heads: tuple[str, ...]
    verdict: str
    stopped: str
    fault: str


def find_run(word: Path, runs: Path, manifest: str = RUN) -> Path:
    """The run folder that a word means: its path, its name in ``runs``, or ``latest``.

    Args:
        word: As given.
        runs: The folder of run folders.
        manifest: The file that a folder is known by; another one for nights.

    Raises:
        RecordError: There is no such run.
    """
    if str(word) == LATEST:
        folders = [file.parent for file in runs.glob(f"*/{manifest}")]
        if not folders:
            what = Path(manifest).stem
            raise RecordError(f"holds no {what}", where=str(runs), remedy="Name another folder of runs with --runs.")
        return max(folders, key=_age)
    named = runs / word
    if not word.exists() and not named.exists():
        raise RecordError(f"does not exist, and {runs}/ holds no run of that name", where=str(word), remedy=LIST)
    return word if word.exists() else named


def find_record(word: str, runs: Path) -> str:
    """The same for a word of :func:`perfgate.gate.compare_records`, which may end in ``:base`` or ``:head``."""
    path, colon, side = word.rpartition(":") if word.endswith((":base", ":head")) else (word, "", "")
    return f"{find_run(Path(path), runs)}{colon}{side}"


def list_runs(runs: Path) -> list[ListedRun]:
    """The runs in a folder, the newest first; those of nights too."""
    folders = [file.parent for pattern in (f"*/{RUN}", f"*/*/*/{RUN}") for file in runs.glob(pattern)]
    return [_listed(folder, runs) for folder in sorted(folders, key=_age, reverse=True)]


def runs_document(runs: Sequence[ListedRun]) -> Document:
    """A row a run, the newest first: its name, when it began, its verdict, and what was measured."""
    heading = ("run", "begun (UTC)", "verdict", "base", "head")
    return Document.of((), [Section(rows=[heading, *map(_row, runs)], give_way=(3, 4))])


def _row(run: ListedRun) -> tuple[str, ...]:
    base, head = run.subjects.get("base"), run.subjects.get("head")
    sides = (
        " ".join(words(base)) if base else "-",
        ", ".join(run.heads) or "-" if head is None else " ".join(words(head, base)) or "the same",
    )
    verdict = f"{run.verdict or 'open'}{run.stopped and f', stopped ({run.stopped})'}"
    return (run.name, f"{run.begun:%Y-%m-%d %H:%M}", run.fault or verdict, *sides)


def _listed(folder: Path, runs: Path) -> ListedRun:
    subjects: Mapping[Side, Subject] = {}
    heads: tuple[str, ...] = ()
    verdict, fault = "", ""
    try:
        manifest = read_run(folder)
        subjects, heads = manifest.subjects, tuple(manifest.heads)
        if (file := folder / "verdict.json").exists():
            verdict = read_model(Outcome, file, RECORD).verdict
    except RecordError as error:
        fault = "verdict.json cannot be read" if subjects else error.finding
    stop = read_stop(folder)
    why = stop.code.replace("-", " ") if stop else ""
    return ListedRun(str(folder.relative_to(runs)), _begun(folder), subjects, heads, verdict, why, fault)


def _age(folder: Path) -> tuple[datetime, str]:
    return _begun(folder), folder.name


def _begun(folder: Path) -> datetime:
    """By its name, which perfgate gave it; by its manifest where somebody renamed it."""
    if (begun := begun_of(folder.name)) is not None:
        return begun
    file = next((file for name in (RUN, NIGHT) if (file := folder / name).exists()), folder)
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).replace(microsecond=0)
