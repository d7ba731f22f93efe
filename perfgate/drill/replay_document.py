"""A replay as a report: declared rates beside observed ones, the detection curve beside the promised one, and peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from perfgate import __version__
from perfgate.drill.peer_rules import PeerCase, PeerRow, peers
from perfgate.drill.recordings import STEP, Recording
from perfgate.drill.replay import DRAWS, Declared, Replay, ReplayRow
from perfgate.models import Frozen
from perfgate.report.document import Document, Section
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.units import percent, plural


class RecordedRow(Frozen):
    """A recording that was drawn from."""

    name: str
    kind: str  # what was measured on which class of machine
    pairs: int
    visits: int
    same_build: bool  # whether both sides were one build
    # Standard deviation of its pairs' log ratios of the decode step; `None` where it is not known
    pair_sd: float | None


class ReplayReport(Frozen):
    """What replaying recordings showed."""

    format: Literal["perfgate-replay/1"] = "perfgate-replay/1"
    perfgate: str  # the version whose rule decided
    scenario: str  # whose gates and looks
    seed: int  # of the draws
    draws: int  # of each row
    alpha: float  # declared rate of false blocks of a run
    beta: float  # declared rate of missed regressions of a gate
    pair_sd: dict[str, float]  # spread of all pairs drawn from, by gate that was replayed
    not_replayed: tuple[str, ...]  # gates whose metric was not recorded everywhere
    recordings: tuple[RecordedRow, ...]  # what was drawn from
    left_out: tuple[str, ...]  # recordings that were not, and why
    rows: tuple[ReplayRow, ...]  # what the rule made of each truth
    peers: tuple[PeerRow, ...] = ()  # what other rules made of the same draws

    @property
    def broken(self) -> tuple[str, ...]:
        """What was declared and is not kept."""
        return tuple(f"{row.truth}: {row.broken}" for row in self.rows if row.broken)


def replay_report(
    recordings: Sequence[Recording], declared: Declared, *, draws: int = DRAWS, seed: int = 0
) -> ReplayReport:
    """Replay recordings by a scenario's gates, with a curve of the decode step where it is gated.

    Raises:
        RecordError: Too few pairs, or no gate's metric was recorded.
    """
    replay = Replay.of(recordings, declared, draws, seed)
    names = [plan.gate.measured.name for plan in replay.gates]
    return ReplayReport(
        perfgate=__version__, scenario=declared.name, seed=seed, draws=draws, alpha=ALPHA, beta=BETA,
        pair_sd={name: replay.pool.pair_sd(name) for name in names},
        not_replayed=tuple(p.gate.measured.name for p in declared.gates if p.gate.measured.name not in names),
        recordings=tuple(map(_recorded, replay.pool.recordings)),
        left_out=replay.pool.left_out,
        rows=tuple(map(replay.row, replay.truths(STEP if STEP in names else ""))),
        peers=peers(replay, seed=seed) if STEP in names else (),
    )  # fmt: skip


def _recorded(recording: Recording) -> RecordedRow:
    has_spread = STEP in recording.metrics and recording.pairs > 1
    return RecordedRow(
        name=recording.name, kind=recording.kind, pairs=recording.pairs, visits=len(set(recording.visits)),
        same_build=recording.same_build,
        pair_sd=float(np.std(recording.log_ratios(STEP), ddof=1)) if has_spread else None,
    )  # fmt: skip


def replay_document(report: ReplayReport) -> Document:
    """What is broken first, then the tables."""
    broken = len(report.broken)
    refuted = f"{plural(broken, 'declared rate')} broken" if broken else "no declared rate is refuted"
    headline = f"replay of {report.scenario}: {refuted} in {plural(report.draws, 'draw')} of each truth"
    pairs, visits = (sum(getattr(recording, name) for recording in report.recordings) for name in ("pairs", "visits"))
    spread = ", ".join(f"{name} {percent(sd)}" for name, sd in report.pair_sd.items())
    drawn = f"{report.draws} draws from {pairs} pairs of {plural(visits, 'visit')}, seed {report.seed}"
    lines = [f"{drawn}; pairs spread by {spread}"]
    if len(kinds := dict.fromkeys(recording.kind for recording in report.recordings)) > 1:
        lines.append(f"recordings of {len(kinds)} kinds, never put together in one draw: {', '.join(kinds)}")
    if report.not_replayed:
        lines.append(f"not in every recording, so decided by nothing: {', '.join(report.not_replayed)}")
    drawn_from = [
        (recording.name, str(recording.pairs), str(recording.visits),
         "-" if recording.pair_sd is None else percent(recording.pair_sd),
         "the same build" if recording.same_build else "another build, its effect taken out")
        for recording in report.recordings
    ]  # fmt: skip
    sections = [
        Section(title=f"replay of {report.scenario}", lines=tuple(lines), importance=0),
        Section(lead="broken", lines=report.broken, style="items", importance=0),
        _rates(report), _curve(report), _peers(report.peers),
        Section(title="drawn from", rows=[("recording", "pairs", "visits", "pair sd", "head"), *drawn_from]),
        Section(lead="left out", lines=report.left_out, style="items"),
    ]  # fmt: skip
    return Document.of([headline], sections, is_verdict=True)


def _rates(report: ReplayReport) -> Section:
    must_catch: dict[str, float] = {}  # the smallest slowdown of each gate that may not pass
    for row in report.rows:
        if row.error == "false-passes" and row.size is not None:
            must_catch[row.slowed] = min(row.size, must_catch.get(row.slowed, row.size))
    shown = [(row, row.wrong, row.declared) for row in report.rows if not row.slowed or row.size in must_catch.values()]
    heading = ("true slowdown", "error", "observed", "at most", "declared", "pairs", "remark")
    return Section(
        title="declared rates",
        rows=[heading, *(
            (row.truth, row.error, percent(wrong.value), percent(wrong.at_most), percent(declared), f"{row.pairs:.1f}",
             "broken" if row.broken else "kept" if wrong.at_most <= declared else "not refuted")
            for row, wrong, declared in shown if wrong is not None and declared is not None
        )],
        give_way=(5, 1),
    )  # fmt: skip


def _curve(report: ReplayReport) -> Section:
    rows = sorted((row for row in report.rows if row.slowed == STEP), key=lambda row: row.size or 0.0)
    if not rows:
        return Section()
    heading = ("slowdown", "blocked", "promised", "passed", "undecided", "pairs", "blocked, exact bounds")
    return Section(
        title=f"detection curve of {STEP}",
        rows=[heading, *(
            (_size(row.size or 0.0), percent(row.regressed.value),
             "-" if row.promised is None else percent(row.promised), percent(row.passed.value),
             percent(row.inconclusive.value), f"{row.pairs:.1f}",
             f"{percent(row.regressed.at_least)} to {percent(row.regressed.at_most)}")
            for row in rows
        )],
        give_way=(5, 4),
        lines=(PROMISED,),
    )  # fmt: skip


def _peers(rows: Sequence[PeerRow]) -> Section:
    cases = next((row.cases for row in rows if row.cases), ())
    if not cases:
        return Section()
    asked = [f"{'blocked' if case.error == 'false-blocks' else 'missed'}, {_size(case.size)}" for case in cases]
    asked = [words if case.size else "false alarms" for words, case in zip(asked, cases, strict=True)]
    return Section(
        title="other rules on the same draws",
        rows=[("rule", *asked, "engine starts", "what it is given"), *(
            (row.rule, *(percent(case.wrong.value) for case in row.cases), _starts(row.cases), row.given)
            if row.cases else (row.rule, *["-"] * (len(cases) + 1), row.given)
            for row in rows
        )],
        give_way=(len(cases) + 1,),
        lines=(LEGEND,),
    )  # fmt: skip


PROMISED = (
    "Promised: so many are blocked at least if pairs are normal and spread like these, by the power of the t tests "
    "less the chance to pass before; 0 where most runs pass first."
)
LEGEND = (
    "False alarms: blocked without a slowdown. Missed: passed with one; what is left a rule calls undecided. A dash: "
    "the recordings do not have what the rule is given."
)


def _starts(cases: Sequence[PeerCase]) -> str:
    counts = sorted({round(case.starts, 1) for case in cases})
    return " to ".join(dict.fromkeys(f"{starts:g}" for starts in (counts[0], counts[-1])))


def _size(size: float) -> str:
    return f"+{size * 100:.3g} %"
