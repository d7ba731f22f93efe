"""What a search found, and what stays uncertain: everything that is said of it, read from its folders."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from perfgate import stats
from perfgate.bisect.bisection import State, Taken
from perfgate.bisect.commit_search import Answer, Why
from perfgate.errors import ExitStatus, Verdict
from perfgate.judge.outcome import GateOutcome
from perfgate.models import Frozen, Note
from perfgate.report.document import Document, NoteLine, Section
from perfgate.scenario.subject import SHOWN
from perfgate.trace.difference import first_difference
from perfgate.units import percent, plural, signed_percent

CONFIDENCE_SDS = 1.96  # of a normal variable: 95 % lie within so many standard deviations
TOLD = 0.01  # a commit that is not in the answer and is more probable than this is named

Found = Literal["found", "several", "nothing-lost", "inconclusive", "not-measured", "open"]
# What a search ends with
EXITS: dict[Found, ExitStatus] = {
    "found": ExitStatus.PASS,
    "several": ExitStatus.INCONCLUSIVE,
    "nothing-lost": ExitStatus.NOT_COMPARABLE,
    "inconclusive": ExitStatus.INCONCLUSIVE,
    "not-measured": ExitStatus.NOT_MEASURED,
    "open": ExitStatus.INTERRUPTED,
}


class ShownCommit(Frozen):
    """A commit, and what is known of it."""

    commit: str  # full hash
    title: str  # first line of its message
    probability: float | None = None  # that it lost the difference; `None` of the good commit
    pairs: int = 0  # measured beside the good commit
    # Their mean, how much worse than the good commit, as a ratio minus one; `None` without pairs
    worse: float | None = None
    merges: tuple[str, ...] = ()  # commits that it merges, beside its first parent


class ShownComparison(Frozen):
    """Two commits as the gate's own rule compared them."""

    base: str  # full hash
    head: str  # full hash
    run: str  # the run folder, from the search's
    verdict: Verdict  # of the gate
    pairs: int  # behind the figures
    change: float | None  # as in :class:`perfgate.judge.outcome.MetricOutcome`, in the metric's own direction
    change_low: float | None  # end of the interval towards smaller values
    change_high: float | None  # end towards larger values


class Loss(Frozen):
    """What one commit lost by the model of all pairs, without offsets of builds: ratios minus one, above 0 is worse."""

    mean: float  # the estimate
    low: float  # end of the interval of 95 %
    high: float


class BisectReport(Frozen):
    """What a search found."""

    format: Literal["perfgate-bisection/1"] = "perfgate-bisection/1"
    name: str  # of its folder
    scenario: Path  # the scenario's file
    cell: str = ""  # name of the cell that was lost; empty where none is known
    cell_id: str = ""  # its identity
    metric: str = ""  # the metric that was lost
    verdict: Found  # `found` for one commit; `several` that hold it; else why there is none
    exit_status: int  # what the process ends with
    error: float  # declared probability of a wrong answer
    why: Why | None = None  # why the search ended
    probability: float | None = None  # that the loss is among the answer's commits
    answer: tuple[ShownCommit, ...] = ()  # the commits that hold it, in order
    commits: int  # how many there are on the line, the good one not counted
    reproduced: ShownComparison | None = None  # the good and the bad commit
    confirmed: ShownComparison | None = None  # the builds before and after the answer
    loss: Loss | None = None  # what the commit lost
    kernels: tuple[str, ...] = ()  # what the decode steps of these two builds differ in, where they were traced
    measured: tuple[ShownCommit, ...] = ()  # every commit that was measured beside the good one, in order
    skipped: tuple[tuple[ShownCommit, Note], ...] = ()  # commits that could not be measured, with the reason of each
    pairs: int = 0  # taken in all steps together
    pair_sd: float | None = None  # their standard deviation
    uncertain: tuple[str, ...] = ()  # what stays uncertain, in sentences


def report_of(folder: Path, state: State) -> BisectReport:
    """What the folders of a search say, whether or not it is over."""
    bisection, next_one = state.bisection, state.next
    verdict = _verdict(state)
    fields: dict[str, Any] = {
        "name": bisection.name, "scenario": bisection.scenario, "error": bisection.error, "verdict": verdict,
        "exit_status": EXITS[verdict], "commits": bisection.last,
        "skipped": tuple((_shown(state, number), note) for number, note in sorted(state.skipped.items())),
    }  # fmt: skip
    first = state.reproduction
    if first is not None:
        fields["reproduced"] = _comparison(folder, state, first)
    if state.lost is None or state.posterior is None:
        return BisectReport(**fields)
    cell, metric = state.lost
    mean, sd = state.posterior.loss
    measured = sorted({comparison.head for comparison in state.evidence.compared if comparison.base == 0})
    ends = (stats.to_ratio(mean + side * CONFIDENCE_SDS * sd) for side in (-1, 1))
    fields |= {
        "cell": cell.name, "cell_id": cell.cell_id, "metric": metric, "pairs": state.evidence.pairs,
        "pair_sd": state.posterior.pair_sd, "loss": Loss(mean=stats.to_ratio(mean), low=next(ends), high=next(ends)),
        "measured": tuple(_shown(state, number) for number in measured),
    }  # fmt: skip
    if not isinstance(next_one, Answer):
        return BisectReport(**fields)
    # The comparison of the builds before and after the answer; where these are all there are, the first one.
    first_of, last_of = next_one.commits[0], next_one.commits[-1]
    around = [
        step for step in state.taken if step.purpose != "search" and step.base < first_of and step.head >= last_of
    ]
    confirmed = around[-1] if around else None
    fields |= {
        "why": next_one.why, "probability": next_one.probability,
        "answer": tuple(_shown(state, number) for number in next_one.commits),
        "confirmed": _comparison(folder, state, confirmed) if confirmed else None,
        "kernels": _kernels(confirmed, cell.cell_id) if confirmed else (),
    }  # fmt: skip
    report = BisectReport(**fields)
    return report.model_copy(update={"uncertain": tuple(_uncertain(state, report))})


def _verdict(state: State) -> Found:
    first = state.reproduction
    if first is None or state.unfinished is not None:
        return "open"
    if isinstance(state.next, Answer):
        return "found" if len(state.next.commits) == 1 else "several"
    if state.next is not None:
        return "open"
    reached: dict[Verdict, Found] = {"pass": "nothing-lost", "improved": "nothing-lost", "inconclusive": "inconclusive",
                                     "regressed": "nothing-lost"}  # fmt: skip
    return reached.get(first.outcome.verdict, "not-measured")


def _shown(state: State, number: int) -> ShownCommit:
    commit = state.bisection.commits[number]
    d = [
        value
        for comparison in state.evidence.compared
        if (comparison.base, comparison.head) == (0, number)
        for value in comparison.d
    ]
    weighed = state.posterior is not None and number > 0
    return ShownCommit(
        commit=commit.commit, title=commit.title, merges=commit.parents[1:], pairs=len(d),
        probability=float(state.posterior.by_commit[number - 1]) if state.posterior is not None and weighed else None,
        worse=stats.to_ratio(float(np.mean(d))) if d else None,
    )  # fmt: skip


def _comparison(folder: Path, state: State, step: Taken) -> ShownComparison | None:
    """What the gate said; before it is known what was lost, the worst gate of the run."""
    gates = [gate for cell in step.outcome.cells for gate in cell.gates]
    if state.lost is not None:
        cell, metric = state.lost
        gates = [gate for outcome in step.outcome.cells if outcome.cell_id == cell.cell_id for gate in outcome.gates]
        gates = [gate for gate in gates if gate.metric == metric]
    if not gates:
        return None
    gate: GateOutcome = min(gates, key=lambda gate: gate.p)
    base, head = (state.bisection.commits[number].commit for number in (step.base, step.head))
    return ShownComparison(
        base=base, head=head, run=str(step.folder.relative_to(folder)), verdict=gate.verdict, pairs=gate.pairs,
        change=gate.change, change_low=gate.change_low, change_high=gate.change_high,
    )  # fmt: skip


def _kernels(step: Taken, cell_id: str) -> tuple[str, ...]:
    record = step.records.get(cell_id)
    traced = record.pairs("traced") if record is not None else []
    return first_difference((base.decode, head.decode) for base, head in traced)


def _uncertain(state: State, report: BisectReport) -> Iterator[str]:
    yield (
        f"The model says {percent(report.probability or 0.0)}; over searches like this the answer misses the commit in "
        f"at most {percent(report.error)}, if changes are as docs/bisect.md assumes."
    )
    answer = {commit.commit for commit in report.answer}
    others = [_shown(state, number) for number in range(1, state.bisection.last + 1)]
    names = [f"{commit.commit[:SHOWN]} ({percent(commit.probability or 0.0)})" for commit in others
             if commit.commit not in answer and (commit.probability or 0.0) > TOLD]  # fmt: skip
    if names:
        yield f"Not excluded: {', '.join(names)}."
    if inside := [shown.commit[:SHOWN] for shown, _ in report.skipped if shown.commit in answer]:
        verb = "was" if len(inside) == 1 else "were"
        yield f"{', '.join(inside)} {verb} not measured, so what is there cannot be told from the next commit."
    whole = report.reproduced.change if report.reproduced else None
    if report.loss is not None and whole is not None and report.verdict == "found":
        low, high = report.loss.low, report.loss.high
        interval = f" ({signed_percent(low)} to {signed_percent(high)})" if math.isfinite(high) else ""
        loss = f"{signed_percent(report.loss.mean)}{interval}"
        yield (
            f"The commit lost {loss}, and the bad commit is {signed_percent(whole)} beside the good "
            "one: what is left over are other commits, and the offset that each build has of its own."
        )
    if report.confirmed is not None and report.confirmed.verdict != "regressed":
        yield f"The gate did not block the builds after beside those before: {report.confirmed.verdict}."
    if report.why == "exhausted":
        yield "Further pairs would tell these commits apart too slowly: the offsets of their builds are what is left."
    if report.why == "limit":
        yield f"No step was begun after {plural(state.bisection.pairs, 'pair')} (--max-pairs)."
    scenario = shlex.quote(str(report.scenario))
    for commit in report.answer:
        short = commit.commit[:SHOWN]
        for merged in commit.merges:
            yield (
                f'{short} is a merge. Go on inside it: perfgate bisect --good "$(git merge-base '
                f'{short}^ {merged[:SHOWN]})" --bad {merged[:SHOWN]} {scenario}'
            )


HEADINGS = ("commit", "probability", "pairs", "worse by", "title")
NONE = {
    "nothing-lost": "Nothing to search for: no timed metric of the bad commit was shown to be worse",
    "inconclusive": "Undecided: the pairs of the good and the bad commit do not show a difference yet",
    "not-measured": "Not measured: the good and the bad commit could not be compared",
    "open": "The search is not over",
}


def bisect_document(report: BisectReport) -> Document:
    """The answer, how it was compared, every commit that was measured, and what stays uncertain."""
    about = f"{report.metric} of {report.cell}, cell {report.cell_id[:8]}" if report.metric else str(report.scenario)
    taken = f", {plural(report.pairs, 'pair')}" if report.pairs else ""
    spread = f", pair sd {percent(report.pair_sd)}" if report.pair_sd is not None else ""
    left = f", {len(report.skipped)} skipped" if report.skipped else ""
    size = f"{plural(report.commits, 'commit')}{left}{taken}{spread}"
    sections = [
        Section(title=f"bisect of {report.scenario}", lines=(f"{about}: {size}; search {report.name}",),
                importance=0),
        Section(rows=[HEADINGS, *map(_row, report.answer)] if report.answer else (), importance=0),
        Section(rows=_comparisons(report), importance=1),
        Section(lead="kernels, after beside before", lines=report.kernels, style="items"),
        Section(title="measured beside the good commit",
                rows=[HEADINGS, *map(_row, report.measured)] if report.measured else (), importance=2),
        Section(lead="skipped", notes=tuple(
            NoteLine.of("skipped", commit.commit[:SHOWN], note) for commit, note in report.skipped)),
        Section(lead="what stays uncertain", lines=report.uncertain, style="items", importance=0),
    ]  # fmt: skip
    return Document.of([headline(report)], sections, is_verdict=True)


def headline(report: BisectReport) -> str:
    """The answer in a sentence."""
    if not report.answer:
        return f"{NONE[report.verdict]}."
    if report.verdict == "found":
        (commit,) = report.answer
        loss = (
            f" by {signed_percent(report.loss.mean)} ({_interval(report.loss.low, report.loss.high)})"
            if report.loss
            else ""
        )
        return f"FOUND: {_named(commit)} made {report.metric} worse{loss} (probability {_share(report.probability)})."
    names = ", ".join(commit.commit[:SHOWN] for commit in report.answer)
    how = ", and no build tells them apart" if report.why == "inseparable" else ""
    return (
        f"SEVERAL: one of {plural(len(report.answer), 'commit')} made {report.metric} worse{how} "
        f"(probability {_share(report.probability)}): {names}."
    )


def _comparisons(report: BisectReport) -> list[tuple[str, ...]]:
    named = (("good and bad", report.reproduced), ("before and after", report.confirmed))
    rows = [
        (what, shown.base[:SHOWN], shown.head[:SHOWN], str(shown.pairs), signed_percent(shown.change),
         _interval(shown.change_low, shown.change_high), shown.verdict)
        for what, shown in named if shown is not None
    ]  # fmt: skip
    return [("comparison", "base", "head", "pairs", "change", "interval", "verdict"), *rows] if rows else []


def _interval(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "-"
    if low is None or high is None:
        return f"below {signed_percent(high)}" if low is None else f"above {signed_percent(low)}"
    return f"{signed_percent(low)} to {signed_percent(high)}"


def _row(commit: ShownCommit) -> tuple[str, ...]:
    return (
        commit.commit[:SHOWN], _share(commit.probability), str(commit.pairs) if commit.pairs else "-",
        signed_percent(commit.worse), commit.title,
    )  # fmt: skip


def _share(probability: float | None) -> str:
    if probability is None:
        return "-"
    return "over 99.9 %" if probability > 0.999 else f"{probability * 100:.1f} %"  # noqa: PLR2004 (shown so)


def _named(commit: ShownCommit) -> str:
    return f"{commit.commit[:SHOWN]} ({commit.title})" if commit.title else commit.commit[:SHOWN]
