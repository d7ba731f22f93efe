"""Carrying a search out: builds are made once a commit, and each step is measured as ``perfgate run`` measures."""

from __future__ import annotations

import contextlib
import math
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfgate import gate
from perfgate.bisect.bisection import (
    MANIFEST,
    OF_THE_BUILD,
    SKIPPED,
    STEPS,
    Bisection,
    Skipped,
    State,
    Taken,
    read_state,
)
from perfgate.bisect.commit_search import Answer, Step
from perfgate.bisect.lost_gate import chosen, narrowed
from perfgate.capture.pace import Progress
from perfgate.cli.measuring import Builds
from perfgate.errors import InterruptedRunError, NotMeasuredError, ScenarioError, UsageError, is_a_stop, stopped
from perfgate.machine.locks import hold
from perfgate.machine.versioned_json import write_model
from perfgate.models import Note
from perfgate.project.build import Builder
from perfgate.project.config import load_config
from perfgate.record.run_names import stamped
from perfgate.run_steps import part_of
from perfgate.scenario.declaration import LoadedScenario, load
from perfgate.scenario.plan import ALPHA
from perfgate.scenario.subject import SHOWN, Subject
from perfgate.scenario.subject_words import WORKING_TREE, anchored

MOST_COMMITS = 2000  # of one line; the time that a choice takes grows with its square
LARGEST_ERROR = 0.5
# So many commits, one after the other, that cannot be measured for the first time: then what builds them is broken
IN_A_ROW = 3

Build = Callable[[str], Subject]  # makes the build of a commit, or finds it in the cache


def begin(  # noqa: PLR0913 (what a search is about, by name)
    scenario: Path, ends: tuple[str, str], runs: Path, progress: Progress, *, words: Sequence[str], cell: str,
    metric: str, error: float, pairs: int, seed: int | None,
) -> Path:  # fmt: skip
    """Make the folder of a new search; nothing is built yet.

    ``ends`` are refs of the good and the bad commit, ``words`` name a build beside its commit, and ``error`` is the
    probability of a wrong answer over the whole search, above the alpha of its first comparison. An empty cell or
    metric means any; the seed is drawn where it is not given.

    Raises:
        UsageError: The refs are not the ends of a line of commits, there are too many, the builds of all would be the
            same, the scenario has no such cell or timed gate, or an error rate cannot be.
        ScenarioError: The scenario is wrong.
    """
    words = anchored(words, Path.cwd())
    if any(word.startswith("ref=") for word in words):
        raise UsageError("--base names a ref, and so do --good and --bad", remedy="Leave it out.")
    if WORKING_TREE in ends:
        raise UsageError("commits are searched, not the working tree", remedy="Commit first, and name HEAD.")
    builder = Builder(load_config(), progress, (runs,))
    commits = builder.line(*ends)
    if builder.has_changes and ends[1] == "HEAD":
        progress("warning: changes that are not committed are not part of HEAD, and so not of the search")
    subjects = Builds((*words, f"ref={commits[0].commit}"), (), runs).subjects(progress, (scenario,), build=False)
    source = subjects["base"].built_from
    if source is None:
        raise UsageError(
            "nothing of what [build] makes is used, so every commit would be the same build",
            where="--base " + " ".join(words), remedy="Leave out the words that replace it.",
        )  # fmt: skip
    loaded = load(scenario)
    chosen(loaded, cell, metric)
    if not ALPHA < error < LARGEST_ERROR:
        raise UsageError(f"--error {error * 100:g}%: expected more than {ALPHA * 100:g} %, which the comparison of the "
                         f"good and the bad commit has, and less than {LARGEST_ERROR * 100:g} %")  # fmt: skip
    if len(commits) > MOST_COMMITS:
        remedy = "Name a later good commit: older nights or releases tell which."
        raise UsageError(f"{len(commits) - 1} commits, and a search takes up to {MOST_COMMITS - 1}", remedy=remedy)
    bisection = Bisection(
        name=stamped("bisect"), scenario=scenario, text=loaded.text, words=tuple(words), commits=tuple(commits),
        cell=cell, metric=metric, error=error, pairs=pairs, recipe=source.recipe,
        seed=secrets.randbits(32) if seed is None else seed,
    )  # fmt: skip
    folder = runs / bisection.name
    (folder / STEPS).mkdir(parents=True)
    write_model(folder / MANIFEST, bisection)
    return folder


def search(
    folder: Path, build: Build, *, budget_s: float = math.inf, progress: Progress = lambda _: None, **means: Any
) -> State:
    """Take steps until there is an answer; a later call goes on, and tries those builds again that failed.

    No pair is begun that would not end within the budget. ``means`` are further options of :func:`perfgate.gate.run`.

    Raises:
        InterruptedRunError: Stopped or out of budget, or several commits in a row do not build; what was measured is
            kept.
        NotMeasuredError: The good or the bad commit does not build, or the machine is not fit to measure on.
        RecordError: The folder holds no search, or a run in it is not one of its steps.
        NotComparableError: ``different-machines``.
    """
    deadline_s = time.monotonic() + budget_s
    with hold(folder):
        state = read_state(folder)
        again = _TriedAgain(folder, state)
        while True:
            state, left_s = read_state(folder, state), deadline_s - time.monotonic()
            if state.unfinished is None and not isinstance(state.next, Step):
                return state
            with _way_on(folder):
                if state.unfinished is not None:
                    _go_on(folder, state, state.unfinished, build, progress, budget_s=left_s, **means)
                elif isinstance(state.next, Step):
                    new = {state.next.base, state.next.head} - state.measured  # builds that are there prove nothing
                    if new:
                        again.allow(state)
                    failed = _take(folder, state, state.next, build, progress, budget_s=left_s, **means)
                    if failed is not None:
                        again.failed(state, failed)
                    elif new:
                        again.built()


class _TriedAgain:
    """The last commits that did not build in an earlier call, which may be chosen once more.

    Their notes go. Once one fails again the search does not stop for the next: the outage lasts, or there was none, and
    of either the user was told. Once several did, the others' notes are back until a commit builds. Those that did not
    build before another did stay skipped: they were what was broken. So do those of a search that is over, unless with
    them it could tell more.
    """

    def __init__(self, folder: Path, state: State) -> None:
        self._folder = folder
        self._row: list[int] = []
        self._again = 0
        over = state.unfinished is None and not isinstance(state.next, Step)
        spent = state.evidence.pairs >= state.bisection.pairs
        answered = over and (spent or not isinstance(state.next, Answer) or state.next.why == "one")
        self._known = {} if answered else state.unbuilt
        self.allow(state)

    def allow(self, state: State) -> None:
        """Drop the notes, before a build is tried: where the search is killed once it succeeded they must be gone."""
        for number in self._known:
            _skipped_file(self._folder, state, number).unlink(missing_ok=True)

    def built(self) -> None:
        """A commit builds, so that others may as well."""
        self._row, self._again = [], 0

    def failed(self, state: State, number: int) -> None:
        """A commit does not build.

        Raises:
            InterruptedRunError: Nor did those before it, and the user was not told yet.
        """
        if number in self._known:
            write_model(_skipped_file(self._folder, state, number), self._known.pop(number))
            self._again += 1
        elif not self._again:
            self._row.append(number)
            if len(self._row) >= IN_A_ROW:  # it is hardly the commits: each would be left out for nothing
                labels = ", ".join(_label(state, each) for each in self._row)
                cause = (
                    "it is hardly they: see what all builds need, such as the network, a compiler and room on the disk"
                )
                text = f"{len(self._row)} commits in a row do not build, so {cause}\n{labels}"
                raise InterruptedRunError(text, code="interrupted")
        if self._again >= IN_A_ROW:
            for other, note in self._known.items():
                write_model(_skipped_file(self._folder, state, other), note)


def _skipped_file(folder: Path, state: State, number: int) -> Path:
    return folder / SKIPPED / f"{state.bisection.commits[number].commit}.json"


def _go_on(folder: Path, state: State, begun: Taken, build: Build, progress: Progress, **options: Any) -> None:
    """Measure what is open of a step that was stopped."""

    def rebuild(_: object) -> None:
        for number in (begun.base, begun.head):
            build(state.bisection.commits[number].commit)

    part = part_of(progress, f"{begun.purpose} {_label(state, begun.head)}")
    gate.resume(begun.folder, prepare=rebuild, progress=part, **options)
    _look_for_failures(folder, state, begun, progress)


def _take(folder: Path, state: State, step: Step, build: Build, progress: Progress, **options: Any) -> int | None:
    """Take a step that is not begun; a commit that cannot be measured is noted, and costs the others nothing.

    Returns:
        The number of a commit whose build cannot be measured.
    """
    ends = {"base": step.base, "head": step.head}
    subjects = {}
    for side, number in ends.items():
        try:
            subjects[side] = build(state.bisection.commits[number].commit)
        except NotMeasuredError as error:
            _skip(folder, state, number, error, progress)
            return number
    number = 1 + max((int(entry.name.partition("-")[0]) for entry in (folder / STEPS).glob("[0-9]*-*")), default=-1)
    step_folder = folder / STEPS / f"{number:03d}-{step.purpose}-{state.bisection.commits[step.head].commit[:SHOWN]}"
    step_folder.mkdir()
    progress(f"{step.purpose}: {_label(state, step.base)} against {_label(state, step.head)}")
    part = part_of(progress, f"{step.purpose} {_label(state, step.head)}")
    scenario, seed = _scenario(state, step), state.bisection.seed + number
    try:
        gate.run([scenario], subjects, runs=step_folder, seed=seed, progress=part, **options)
    except (UsageError, NotMeasuredError) as error:
        refused = isinstance(error, ScenarioError)
        if not refused and error.code not in OF_THE_BUILD:
            raise
        _skip(folder, state, step.head, error, progress)
        return None if refused else step.head
    _look_for_failures(folder, state, step, progress)
    return None


def _scenario(state: State, step: Step) -> LoadedScenario:
    """What is measured in a step: of the scenario the cell and the metric that were lost, once these are known."""
    bisection = state.bisection
    if state.lost is not None:
        return narrowed(bisection.loaded, *state.lost, step.pairs)
    cells, metrics = chosen(bisection.loaded, bisection.cell, bisection.metric)
    if len(cells) == len(metrics) == 1:
        return narrowed(bisection.loaded, cells[0], metrics[0])
    return bisection.loaded


def _look_for_failures(folder: Path, before: State, step: Step | Taken, progress: Progress) -> None:
    """Leave a commit out whose engines fail where those of the good one do not.

    Raises:
        NotMeasuredError: The machine, or the good commit, is the reason.
    """
    state = read_state(folder, before)
    taken = state.taken[-1]  # only the last can be open
    stops = [record.stopped for record in taken.records.values() if record.stopped is not None]
    if step.purpose == "confirm" or (not stops and (state.lost is None or state.counts(taken))):
        return
    if not stops:  # measured to its end, and without a value of the metric
        reasons = [note for cell in taken.outcome.cells for gate in cell.gates for note in gate.reasons
                   if gate.verdict == "not-measured"]  # fmt: skip
        missing = next(iter(reasons), Note(code="metric-missing", text="the metric has no value"))
        _skip(folder, state, step.head, NotMeasuredError(missing.text, code=missing.code), progress)
        return
    failed = {trial.label for record in taken.records.values() for trial in record.trials if trial.failure is not None}
    error = NotMeasuredError(stops[0].text, where=_label(state, step.head), code=stops[0].code)
    if step.purpose == "reproduce" or failed != {"head"}:
        raise error
    _skip(folder, state, step.head, error, progress)


def _skip(folder: Path, state: State, number: int, error: NotMeasuredError | UsageError, progress: Progress) -> None:
    """Note why a commit is left out; without the good or the bad one there is no search.

    Raises:
        NotMeasuredError: It is one of these.
        UsageError: As above.
    """
    if number in (0, state.bisection.last):
        raise error
    (folder / SKIPPED).mkdir(exist_ok=True)
    code = "scenario-refused" if isinstance(error, ScenarioError) else error.code or "build-failed"
    note = Skipped(code=code, text=error.finding, after=len(state.taken))
    write_model(_skipped_file(folder, state, number), note)
    progress(f"{_label(state, number)} is skipped: {note.text}")


@contextlib.contextmanager
def _way_on(folder: Path) -> Iterator[None]:
    """Where a search is stopped the error says how it goes on."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not is_a_stop(error):
            raise
        raise stopped(error, f"Go on with: perfgate bisect --resume {shlex.quote(str(folder))}") from error


def _label(state: State, number: int) -> str:
    commit = state.bisection.commits[number]
    return f"{commit.commit[:SHOWN]} ({commit.title})" if commit.title else commit.commit[:SHOWN]
