"""What of a run folder, a night or a baseline can be trusted, check by check, and what nobody can tell from it.

Digests, chains and plans are recomputed. None of them is a signature: whoever can write the folder can make them anew.
So the last line of every verification says what rests on the machine that measured (docs/security.md).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfgate import rooms
from perfgate.baseline.confirmation import read_pairs
from perfgate.baseline.exact_profile import kept_profiles
from perfgate.baseline.store import as_of, commit, is_baseline, kept, read, verify
from perfgate.capture.worker import MAX_ANSWER_BYTES
from perfgate.errors import NotMeasuredError, PerfgateError, RecordError, UsageError
from perfgate.fleet.nightly import BESIDE, HALVES, MANIFEST, check_halves, night_outcome, run_of
from perfgate.gate import outcome_of
from perfgate.judge.next_pairs import due
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.judge.running import is_running
from perfgate.machine.atomic_files import sha256_of
from perfgate.machine.json_text import parse_json
from perfgate.metrics.trial import Artifact, Iteration, Trial
from perfgate.record.dropped_pairs import CHANGED, UNKNOWN
from perfgate.record.manifest import SCENARIOS, check_sequence, read_manifest
from perfgate.record.measured_builds import measured_digests, unlike_builds
from perfgate.record.nested_pairs import FOLDER, run_of_pairs
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records
from perfgate.scenario.drivers import DRIVERS
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import SHOWN
from perfgate.units import plural

# Lines of a timeline beside those declared: waiting for a GPU or a server, and the windows of a search
MOST_BESIDE = 64
MOST_A_LINE = 1024**3  # bytes: a line is held in memory
BYTES_A_TOKEN = 64  # of a line, for each token of a window: a stamp and a count take 23

Result = Literal["ok", "FAILED", "unknown"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    result: Result  # `ok`, `FAILED`, or `unknown` where this place cannot tell
    what: str  # what was looked at
    text: str  # what was found


def verify_path(path: Path) -> Iterator[Check]:
    """Check a run folder, the folder of a night, or the file of a baseline.

    Raises:
        RecordError: It is none of these.
    """
    if path.is_file() and is_baseline(path):
        yield from _baseline(path)
    elif (path / RUN).is_file():
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
    records: list[Record] = []
    read = _attempt("records", lambda: records.extend(read_records(folder, run[0])),
                    "each fits its digest, the plan and the subjects")  # fmt: skip
    yield read
    if read.result == "ok":
        order = _attempt("order", lambda: check_sequence(records), "trials are as the seed and the cells have them")
        yield order
        # What cannot have been taken is not judged, be it to find out what would be due.
        unknown = Check("unknown", "pairs", "are told by trials that can have been taken")
        yield _pairs(run[0], records) if order.result == "ok" else unknown
        yield _builds(records)
        yield _files(folder, records)
        yield _times(folder, records)
    else:
        yield Check("unknown", "order, pairs, builds, files, times", "are told by the records")
    yield _attempt("baselines", lambda: (kept(folder, run[0]), kept_profiles(folder, run[0])),
                   "each kept copy is whole, and the one that the plan names")  # fmt: skip
    if (pairs := run_of_pairs(folder)) is not None:
        yield from (Check(check.result, f"{FOLDER}: {check.what}", check.text) for check in _run(pairs))
    if pairs is not None or run[0].pairs is not None:
        yield _tie(folder, run[0], records if read.result == "ok" else None)
    yield _verdict(folder)
    yield _scenarios_in_git(folder, run[0])
    text = "nothing here is signed: figures are worth what the machine is that measured, and all whose code ran on it"
    yield Check("unknown", "measuring", text)


def _night(folder: Path) -> Iterator[Check]:
    yield _attempt("night", lambda: check_halves(folder), "each half measured the subjects that the night names for it")
    yield _verdict(folder, night_outcome)
    for half in (*HALVES, *BESIDE):
        begun = run_of(folder, half)
        if begun is None:
            yield from [Check("unknown", half, "has not begun")] if half in HALVES else []
        else:
            yield from (Check(check.result, f"{half}: {check.what}", check.text) for check in _run(begun))


def _baseline(file: Path) -> Iterator[Check]:
    yield _attempt("chain", lambda: read(file), "each entry carries the digest of the one before it, and of itself")
    if commit(file.absolute().parent):
        yield _attempt("git", lambda: [*verify([file], None, None)], "only grew since HEAD")
    else:
        yield Check("unknown", "git", "not in a repository with a commit: entries may have been removed from its end")
    yield Check("unknown", "records", "are named by their digests alone: verify the run folders that they come from")


def _attempt(what: str, look: Callable[[], object], text: str) -> Check:
    try:
        look()
    except PerfgateError as error:
        return Check("FAILED", what, f"{error.where}: {error.text}" if error.where else error.text)
    return Check("ok", what, text)


def _pairs(run: Run, records: Sequence[Record]) -> Check:
    """Whether the run came to its end; a record that was cut off at its end is one of a run that was stopped."""
    by_cell = {record.cell.cell_id: record for record in records}
    lacking = []
    for wanted in due(run, by_cell):
        record = by_cell.get(wanted.cell.cell_id)
        for head in wanted.heads:
            name = f"{head}: {wanted.cell.name}" if head else wanted.cell.name
            taken = record.of(head).measured(wanted.kind) if record else 0
            lacking.append(f"{name} has {taken} of {wanted.target} {wanted.kind} pairs")
    if lacking:
        text = f"INCOMPLETE: {'; '.join(lacking)}. The run was stopped, or cut off at its end"
        return Check("unknown", "pairs", text)
    return Check("ok", "pairs", "no cell is due any more: each was decided, stopped, or looked at for the last time")


def _builds(records: Sequence[Record]) -> Check:
    """Whether each side was one build from the first trial to the last, at every visit and in every cell."""
    stops = [stop for record in records for stop in (record.stopped, *record.stops.values()) if stop]
    if others := [*(stop.text for stop in stops if stop.code == CHANGED), *unlike_builds(records)]:
        return Check("FAILED", "builds", "; ".join(dict.fromkeys(others)))
    sides = [(record, label) for record in records for label in record.built]
    digests = {label: digest for record, label in sides for digest in measured_digests(record, label)}
    read = [(label, visit.builds.get(label)) for record, label in sides for visit in record.visits]
    lacking = dict.fromkeys(
        f"{label}: {build.unknown if build else 'its files were not read'}"
        for label, build in read
        if not (build and build.digest)
    )
    if in_doubt := [trial for record in records for trial in record.trials if UNKNOWN in trial.cautions]:
        lacking[f"before {plural(len(in_doubt), 'trial')} not all of the files could be read"] = None
    if lacking or not digests:
        return Check("unknown", "builds", "; ".join(lacking) or "no trial was taken")
    listing = ", ".join(f"{label} {digest[:SHOWN]}" for label, digest in digests.items())
    return Check("ok", "builds", f"their files were the same before every trial: {listing}")


def _tie(folder: Path, run: Run, records: Sequence[Record] | None) -> Check:
    """Whether pairs are those that the run began, follow its visits, and are of the same builds."""
    what = f"{FOLDER}: of this run"
    if records is None:
        return Check("unknown", what, "is told by the records of both")
    paired: list[Record] = []

    def look() -> None:
        _, by_cell = read_pairs(folder, run, {record.cell.cell_id: record for record in records}) or (run, {})
        paired.extend(by_cell.values())

    check = _attempt(what, look, "the run names them; they follow its visits, and their heads have the same files")
    stops = [stop for record in paired for stop in (record.stopped, *record.stops.values()) if stop]
    if others := [stop.text for stop in stops if stop.code == CHANGED]:
        return Check("FAILED", what, "; ".join(others))
    if check.result == "ok" and run.pairs is None:
        text = "they fit, and the run does not name those that were begun: others may be in their place"
        return Check("unknown", what, text)
    return check


def _files(folder: Path, records: Sequence[Record]) -> Check:
    """The files that records name; those that were left out of an artifact are missed by nobody."""
    named: list[Artifact] = []
    for trial in (trial for record in records for trial in record.trials):
        named += [file for file in (trial.timeline, trial.samples, *trial.traces) if file is not None]
    there = [file for file in named if (folder / file.path).is_file()]
    if not named:
        return Check("unknown", "files", "the records name none")
    changed = [file.path for file in there if sha256_of(folder / file.path) != file.sha256]
    if changed:
        return Check("FAILED", "files", f"not as they were recorded: {', '.join(changed)}")
    if len(there) < len(named):
        text = f"{len(there)} of {len(named)} that the records name are here, as they were recorded"
        return Check("unknown", "files", text)
    return Check("ok", "files", f"all {len(named)} that the records name are as they were recorded")


def _times(folder: Path, records: Sequence[Record]) -> Check:
    """Whether the times in the records are those of the workers' own answers, which are kept beside them."""
    timed = [(record, trial) for record in records for trial in record.trials
             if trial.kind == "timed" and trial.failure is None]  # fmt: skip
    here = [(record, trial, folder / trial.timeline.path) for record, trial in timed
            if trial.timeline and (folder / trial.timeline.path).is_file()]  # fmt: skip
    wrong = [str(trial.index) for record, trial, file in here if not _tells(file, record, trial)]
    if not timed:
        return Check("unknown", "times", "no timed trial was taken")
    if wrong:
        return Check("FAILED", "times", f"not those of the raw timelines, in trials {', '.join(wrong)}")
    if len(here) < len(timed):
        text = f"the raw timelines of {len(here)} of {len(timed)} timed trials are here, and tell the same"
        return Check("unknown", "times", text)
    return Check("ok", "times", f"those of {len(timed)} timed trials are what their raw timelines tell")


def _longest_line(cell: Cell, trial: Trial) -> int:
    """Bytes that a line of a timeline may have; iterations that were not measured may have more tokens."""
    tokens = max((iteration.generated for iteration in trial.iterations), default=0)
    tokens = max(tokens, cell.work.most_tokens)
    return min(MAX_ANSWER_BYTES + BYTES_A_TOKEN * tokens, MOST_A_LINE)


def _tells(file: Path, record: Record, trial: Trial) -> bool:
    """Whether a timeline gives the iterations of a trial; one that is damaged, or made to do harm, does not.

    Warm-up is as long as declared, and longer where the trial says that it waited for the GPU, or for a server, or
    sought a rate.
    """
    iterations: list[Iteration] = []
    cell, measure, warmup = record.cell, record.cell.measure, 0
    if (count := len(trial.iterations)) not in record.iterations_of(trial):
        return False
    read, most = rooms.bring(DRIVERS[cell.engine.driver].read), _longest_line(cell, trial)
    left = (measure.warmup_iterations + count + MOST_BESIDE) * most
    try:
        with gzip.open(file) as lines:
            while len(iterations) < count and left > 0:
                line = lines.readline(most)
                left -= len(line)
                answer = json.loads(line)
                if answer["warmup"]:
                    warmup += 1
                else:
                    iterations.append(read(answer, cell.workload))
            more = warmup - measure.warmup_iterations
            if more < 0 or (more and not cell.work.longer_warmup & trial.figures.keys()):
                return False
            beside = (other for other in record.trials if other.visit == trial.visit)
            if not any(iteration.step_ns is not None for other in beside for iteration in other.iterations):
                # An older version did not note it of any trial of that visit.
                iterations = [iteration.model_copy(update={"step_ns": None}) for iteration in iterations]
            return tuple(iterations) == trial.iterations and not lines.read(1)
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, RecursionError, NotMeasuredError):
        return False


def _verdict(folder: Path, recompute: Callable[[Path], Outcome] = outcome_of) -> Check:
    try:
        stored = (folder / "verdict.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Check("unknown", "verdict", "there is no verdict.json that could be compared")
    try:
        outcome = recompute(folder)
    except PerfgateError as error:
        return Check("FAILED", "verdict", error.text)
    if is_running(outcome):
        return Check("unknown", "verdict", "the run is still being measured")
    if stored != verdict_json(outcome):
        try:
            content = parse_json(stored)
        except ValueError:
            content = None
        claimed = content if isinstance(content, dict) else {}  # what it says of itself
        if claimed.get("perfgate") != outcome.perfgate and claimed.get("verdict") == outcome.verdict:
            text = f"{outcome.verdict}, as {claimed.get('perfgate')} found it; this version words its report otherwise"
            return Check("unknown", "verdict", text)
        return Check("FAILED", "verdict", f"verdict.json is not what the records give now: {outcome.verdict}")
    return Check("ok", "verdict", f"{outcome.verdict}, recomputed from the records")


def _scenarios_in_git(folder: Path, run: Run) -> Check:
    """Whether the scenarios are those that the repository here has at HEAD; never one that came with the run."""
    others, here = [], Path.cwd()
    is_ours = not here.is_relative_to(folder.resolve())
    for name, source in {cell.scenario: Path(cell.source) for cell in run.plan.cells}.items():
        try:
            nameable = is_ours and not source.is_absolute() and "\0" not in str(source)
            text = as_of(source, "HEAD", here) if nameable else None
        except UsageError:
            text = None
        kept = (folder / SCENARIOS / f"{name}.yaml").read_bytes().decode()
        # git may have changed line ends when it was checked out (core.autocrlf)
        if text is None or text.replace("\r\n", "\n") != kept.replace("\r\n", "\n"):
            others.append(str(source))
    if others:
        return Check("unknown", "git", f"not what the repository here has at HEAD: {', '.join(others)}")
    return Check("ok", "git", "scenarios are those of the repository here at HEAD")
