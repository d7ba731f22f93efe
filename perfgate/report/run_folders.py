"""Run folders: which there are, which of them a word means, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import BaseModel, JsonValue

from perfgate.errors import NotMeasuredError, RecordError, Verdict
from perfgate.machine.json_text import RECORD
from perfgate.machine.versioned_json import read_model
from perfgate.metrics.sides import HeadName, Side
from perfgate.record.run_names import NIGHT, RUN, begun_of
from perfgate.record.run_state import measured_anything, state_of
from perfgate.record.stop import read_stop
from perfgate.report.document import Document, Section
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import words

LATEST = "latest"  # the word for the newest run folder
LIST = "perfgate list shows the runs; name another folder of them with --runs."


class _Row(BaseModel):
    base: float | None
    head: float | None


class _Cell(BaseModel):
    ungated: tuple[_Row, ...]


class _Verdict(BaseModel):
    """What a list shows of a ``verdict.json``; whoever judges the run reads all of it."""

    format: Literal["perfgate-verdict/1"] = "perfgate-verdict/1"
    verdict: Verdict
    cells: Annotated[tuple[_Cell, ...], MinLen(1)]


class _Manifest(BaseModel):
    """The same of a ``run.json``."""

    format: Literal["perfgate-run/1"] = "perfgate-run/1"
    plan: dict[str, JsonValue]
    subjects: dict[Side, Subject]
    heads: dict[HeadName, Subject] = {}


@dataclass(frozen=True)
class ListedRun:
    """A run in a folder of them."""

    name: str  # its folder, from theirs: a night's halves are two below the night's
    begun: datetime  # when, to the second, in UTC
    subjects: Mapping[Side, Subject]  # by side; empty where the manifest cannot be read
    heads: tuple[str, ...]  # the names of several heads; empty where there is one
    state: str  # what became of it while there is no verdict to show, see :func:`perfgate.record.run_state.state_of`
    verdict: str  # of its `verdict.json`; empty before there is one
    stopped: str  # how its last visit ended before its end, in a few words; empty where it did not
    fault: str  # why the folder cannot be read; empty where it can


def find_run(
    word: Path,
    runs: Path,
    manifest: str = RUN,
    *,
    to_resume: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """The run folder that a word means: its path, its name in ``runs``, or ``latest``.

    The latest run is the newest that has measured anything, and to go on with the newest of all.

    Args:
        word: As given.
        runs: The folder of run folders.
        manifest: The file that a folder is known by; another one for nights.
        to_resume: Whether it is to go on.
        tell: Gets a sentence for each newer run that has measured nothing, and is not meant therefore.

    Raises:
        RecordError: There is no such run.
        NotMeasuredError: ``not-started``: there are runs, and none has measured anything.
    """
    if str(word) == LATEST:
        folders = sorted((file.parent for file in runs.glob(f"*/{manifest}")), key=_age, reverse=True)
        if not folders:
            what = Path(manifest).stem
            raise RecordError(f"holds no {what}", where=str(runs), remedy="Name another folder of runs with --runs.")
        if to_resume or manifest != RUN:
            return folders[0]
        return _newest_measured(folders, runs, tell)
    named = runs / word
    if not word.exists() and not named.exists():
        raise RecordError(f"does not exist, and {runs}/ holds no run of that name", where=str(word), remedy=LIST)
    return word if word.exists() else named


def _newest_measured(folders: Sequence[Path], runs: Path, tell: Callable[[str], None]) -> Path:
    without: list[str] = []
    for folder in folders:
        if measured_anything(folder):
            for newer in without:
                tell(f"the latest run that measured anything is {folder.name}; newer: {newer}")
            return folder
        without.append(f"{folder.name}, {state_of(folder, measured=False)}")
    more = f", and {len(without) - 1} more" if len(without) > 1 else ""
    remedy = "Name a run to see why, or measure: perfgate run SCENARIO."
    text = f"holds no run that measured anything: {without[0]}{more}"
    raise NotMeasuredError(text, where=str(runs), remedy=remedy, code="not-started")


def find_record(word: str, runs: Path, tell: Callable[[str], None] = lambda _: None) -> str:
    """The same for a word of :func:`perfgate.gate.compare_records`, which may end in ``:base`` or ``:head``."""
    path, colon, side = word.rpartition(":") if word.endswith((":base", ":head")) else (word, "", "")
    return f"{find_run(Path(path), runs, tell=tell)}{colon}{side}"


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
    verdict = f"{run.verdict or 'open'}{run.stopped and f', {run.stopped}'}"
    return (run.name, f"{run.begun:%Y-%m-%d %H:%M}", run.fault or run.state or verdict, *sides)


def _listed(folder: Path, runs: Path) -> ListedRun:
    subjects: Mapping[Side, Subject] = {}
    heads: tuple[str, ...] = ()
    verdict, fault, measured = "", "", False
    try:
        manifest = read_model(_Manifest, folder / RUN)
        subjects, heads = manifest.subjects, tuple(manifest.heads)
        if (file := folder / "verdict.json").exists():
            outcome = read_model(_Verdict, file, RECORD)
            verdict = outcome.verdict
            # Where it shows no figure the records tell whether anything was measured.
            rows = [row for cell in outcome.cells for row in cell.ungated]
            measured = any(row.base is not None or row.head is not None for row in rows)
    except RecordError as error:
        fault = "verdict.json cannot be read" if subjects else error.finding
    stop = read_stop(folder)
    is_measured = measured or (verdict and stop is None) or measured_anything(folder)
    state = "" if fault else state_of(folder, measured=bool(is_measured))
    why = f"{'failed' if stop.failed else 'stopped'} ({stop.code.replace('-', ' ')})" if stop else ""
    return ListedRun(str(folder.relative_to(runs)), _begun(folder), subjects, heads, state, verdict, why, fault)


def _age(folder: Path) -> tuple[datetime, str]:
    return _begun(folder), folder.name


def _begun(folder: Path) -> datetime:
    """By its name, which perfgate gave it; by its manifest where somebody renamed it."""
    if (begun := begun_of(folder.name)) is not None:
        return begun
    file = next((file for name in (RUN, NIGHT) if (file := folder / name).exists()), folder)
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).replace(microsecond=0)
