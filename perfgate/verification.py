"""What of a run folder, a night or a baseline can be trusted, check by check, and what nobody can tell from it.

Digests, chains and plans are recomputed. None of them is a signature: whoever can write the folder can make them anew.
So the last line of every verification says what rests on the machine that measured (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfgate.durable import sha256_hex
from perfgate.errors import PerfgateError, RecordError, UsageError
from perfgate.gate import outcome_of
from perfgate.manifest import SCENARIOS, read_manifest
from perfgate.nightly import HALVES, MANIFEST, read_night, run_of
from perfgate.outcome import verdict_json
from perfgate.record import Artifact, Run, read_records
from perfgate.store import as_of, commit, is_baseline, kept, read, verify

Result = Literal["ok", "FAILED", "unknown"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        result: ``ok``, ``FAILED``, or ``unknown`` where this place cannot tell.
        what: What was looked at.
        text: What was found.
    """

    result: Result
    what: str
    text: str


def verify_path(path: Path) -> Iterator[Check]:
    """Check a run folder, the folder of a night, or the file of a baseline.

    Raises:
        RecordError: It is none of these.
    """
    if path.is_file() and is_baseline(path):
        yield from _baseline(path)
    elif (path / "run.json").is_file():
        yield from _run(path)
    elif (path / MANIFEST).is_file():
        yield from _night(path)
    else:
        raise RecordError("expected a run folder, the folder of a night or the file of a baseline", where=str(path))


def _run(folder: Path) -> Iterator[Check]:
    run: list[Run] = []
    yield _attempt("plan", lambda: run.append(read_manifest(folder)), "is what the kept scenarios declare")
    if not run:
        return
    yield _attempt(
        "records", lambda: [*read_records(folder, run[0])], "each fits its digest, the plan and the subjects"
    )
    yield _attempt(
        "baselines", lambda: kept(folder, run[0]), "each kept copy is whole, and the one that the plan names"
    )
    yield _files(folder, run[0])
    yield _verdict(folder)
    yield _scenarios_in_git(folder, run[0])
    text = "nothing here is signed: figures are worth what the machine is that measured, and all whose code ran on it"
    yield Check("unknown", "measuring", text)


def _night(folder: Path) -> Iterator[Check]:
    yield _attempt("night", lambda: read_night(folder), "its manifest can be read")
    for half in HALVES:
        begun = run_of(folder, half)
        if begun is None:
            yield Check("unknown", half, "has not begun")
        else:
            yield from (Check(one.result, f"{half}: {one.what}", one.text) for one in _run(begun))


def _baseline(file: Path) -> Iterator[Check]:
    yield _attempt("chain", lambda: read(file), "each entry carries the digest of the one before it, and of itself")
    if commit(file.absolute().parent):
        yield _attempt("git", lambda: [*verify([file], None, None)], "only grew since HEAD")
    else:
        yield Check(
            "unknown", "git", "lies in no repository with a commit: entries may have been taken away at its end"
        )
    yield Check("unknown", "records", "are named by their digests alone: verify the run folders that they come from")


def _attempt(what: str, look: Callable[[], object], found: str) -> Check:
    try:
        look()
    except PerfgateError as error:
        return Check("FAILED", what, f"{error.where}: {error.text}" if error.where else error.text)
    return Check("ok", what, found)


def _files(folder: Path, run: Run) -> Check:
    """The files that records name; those that were left out of an artifact are missed by nobody."""
    try:
        trials = [trial for record in read_records(folder, run) for trial in record.trials]
    except RecordError:
        return Check("unknown", "files", "which there should be is told by the records")
    named: list[Artifact] = []
    for trial in trials:
        named += [one for one in (trial.timeline, trial.samples, *trial.traces) if one is not None]
    there = [one for one in named if (folder / one.path).is_file()]
    changed = [one.path for one in there if sha256_hex((folder / one.path).read_bytes()) != one.sha256]
    if changed:
        return Check("FAILED", "files", f"not as they were recorded: {', '.join(changed)}")
    if len(there) < len(named):
        text = f"{len(there)} of {len(named)} that the records name are here, as they were recorded"
        return Check("unknown", "files", text)
    return Check("ok", "files", f"all {len(named)} that the records name are as they were recorded")


def _verdict(folder: Path) -> Check:
    try:
        stored = (folder / "verdict.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Check("unknown", "verdict", "there is no verdict.json that could be compared")
    try:
        outcome = outcome_of(folder)
    except PerfgateError as error:
        return Check("FAILED", "verdict", error.text)
    if stored != verdict_json(outcome):
        return Check("FAILED", "verdict", f"verdict.json is not what the records give now: {outcome.verdict}")
    return Check("ok", "verdict", f"{outcome.verdict}, recomputed from the records")


def _scenarios_in_git(folder: Path, run: Run) -> Check:
    """Whether the scenarios are those that the repository here has at HEAD."""
    others = []
    for name, source in {cell.scenario: Path(cell.source) for cell in run.plan.cells}.items():
        try:
            known = as_of(source, "HEAD") if source.parent.is_dir() and not source.is_absolute() else None
        except UsageError:
            known = None
        if known != (folder / SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8"):
            others.append(str(source))
    if others:
        return Check("unknown", "git", f"not what the repository here has at HEAD: {', '.join(others)}")
    return Check("ok", "git", "scenarios are those of the repository here at HEAD")
