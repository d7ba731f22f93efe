"""The report of a search as a document, and as JSON."""

from __future__ import annotations

import json

from perfgate.bisect.bisect_report import BisectReport, ShownCommit, ShownComparison
from perfgate.report.document import Document, NoteLine, Section
from perfgate.scenario.subject import SHOWN
from perfgate.units import percent, plural, signed_percent

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
    sections = [
        Section(title=f"bisect of {report.scenario}", lines=(_about(report, about),), importance=0),
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
        loss = f" by {_loss(report)}" if report.loss else ""
        return f"FOUND: {_named(commit)} made {report.metric} worse{loss} (probability {_share(report.probability)})."
    names = ", ".join(commit.commit[:SHOWN] for commit in report.answer)
    how = ", and no build tells them apart" if report.why == "inseparable" else ""
    return (
        f"SEVERAL: one of {plural(len(report.answer), 'commit')} made {report.metric} worse{how} "
        f"(probability {_share(report.probability)}): {names}."
    )


def bisect_json(report: BisectReport) -> str:
    """The report as JSON."""
    return json.dumps(report.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _about(report: BisectReport, about: str) -> str:
    taken = f", {plural(report.pairs, 'pair')}" if report.pairs else ""
    spread = f", pair sd {percent(report.pair_sd)}" if report.pair_sd is not None else ""
    left = f", {len(report.skipped)} skipped" if report.skipped else ""
    return f"{about}: {plural(report.commits, 'commit')}{left}{taken}{spread}; search {report.name}"


def _comparisons(report: BisectReport) -> list[tuple[str, ...]]:
    named = (("good and bad", report.reproduced), ("before and after", report.confirmed))
    rows = [(what, *_compared(one)) for what, one in named if one is not None]
    return [("comparison", "base", "head", "pairs", "change", "interval", "verdict"), *rows] if rows else []


def _compared(one: ShownComparison) -> tuple[str, ...]:
    return (
        one.base[:SHOWN], one.head[:SHOWN], str(one.pairs), signed_percent(one.change),
        _interval(one.change_low, one.change_high), one.verdict,
    )  # fmt: skip


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


def _loss(report: BisectReport) -> str:
    if report.loss is None:
        return "-"
    return (
        f"{signed_percent(report.loss.mean)} ({signed_percent(report.loss.low)} to {signed_percent(report.loss.high)})"
    )


def _share(probability: float | None) -> str:
    if probability is None:
        return "-"
    return "over 99.9 %" if probability > 0.999 else f"{probability * 100:.1f} %"  # noqa: PLR2004 (shown so)


def _named(commit: ShownCommit) -> str:
    return f"{commit.commit[:SHOWN]} ({commit.title})" if commit.title else commit.commit[:SHOWN]
