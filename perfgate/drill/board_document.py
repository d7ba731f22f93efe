"""A board as a document: what the gate saw and what it did not, exercise by exercise."""

from __future__ import annotations

import json
from dataclasses import dataclass

from perfgate.drill.board import Board, BoardRow, FalseBlocks
from perfgate.report.document import Document, Section
from perfgate.units import percent, plural

HEADINGS = ("exercise", "true size", "measured", "interval", "verdict", "pairs", "minutes", "result", "cause")
GIVE_WAY = (6, 3, 5, 1)
RESULTS = {
    "as-expected": "caught", "missed": "MISSED", "small": "passed, smaller than must_catch", "undecided": "undecided",
    "elsewhere": "blocked by another gate", "false-block": "FALSE BLOCK", "not-measured": "not measured",
    "open": "not finished",
}  # fmt: skip
TOLD = ("missed", "undecided", "elsewhere", "false-block", "not-measured")  # results that are explained below the table


@dataclass(frozen=True)
class BoardReport:
    """What is reported of a campaign."""

    board: Board
    pooled: FalseBlocks  # false blocks over all boards of this scenario and class of machines


def board_document(report: BoardReport) -> Document:
    """A row an exercise, then what was not caught and why, and the false blocks of all campaigns."""
    board, pooled = report.board, report.pooled
    sections = [
        Section(title=f"drill of {', '.join(board.scenario) or 'nothing'}", importance=0,
                lines=(f"campaign {board.name}, machine class {board.machine_class or 'unknown'}",)),
        Section(rows=[HEADINGS, *map(_cells, board.rows)], give_way=GIVE_WAY, importance=0),
        Section(lead="causes", lines=tuple(f"{row.exercise}: {row.told}" for row in board.rows if row.told)),
        Section(lead="reasons", lines=tuple(f"{row.exercise}: {row.why}" for row in board.rows
                                               if row.result in TOLD and row.why)),
        Section(lead="left out", lines=tuple(f"{note.code}: {note.text}" for note in board.left_out)),
        Section(lead="false blocks", lines=(_pooled(pooled, board.alpha),)),
    ]  # fmt: skip
    return Document.of([headline(board, pooled)], sections, is_verdict=True)


def headline(board: Board, pooled: FalseBlocks) -> str:
    """The board in a sentence."""
    plants = [row for row in board.rows if row.plant]
    caught = [row for row in plants if row.result == "as-expected"]
    causes = [row for row in plants if row.cause is not None]
    named = sum(row.cause is True for row in causes)
    parts = []
    if plants:
        parts.append(
            f"{len(caught)} of {plural(len(plants), 'plant')} caught, {named} of {plural(len(causes), 'cause')} named"
        )
    if missed := [row.exercise for row in plants if row.result == "missed"]:
        parts.append(f"missed: {', '.join(missed)}")
    parts.append(
        f"{pooled.blocked} of {plural(pooled.verdicts, 'run')} of one build blocked, at most {percent(pooled.at_most)}"
    )
    return "; ".join(parts)


def _pooled(pooled: FalseBlocks, alpha: float) -> str:
    if not pooled.verdicts:
        return "no run of one build against itself has come to a verdict yet"
    sure = f"the rate is between {percent(pooled.at_least)} and {percent(pooled.at_most)}, each bound exact at 95 %"
    return (
        f"{pooled.blocked} of {plural(pooled.verdicts, 'verdict')} on one build against itself, in "
        f"{plural(len(pooled.boards), 'campaign')} of this scenario on this class of machines; {sure}, declared "
        f"{percent(alpha)}"
    )


def _cells(row: BoardRow) -> tuple[str, ...]:
    cause = {None: "-", True: "named", False: "NOT NAMED"}[row.cause]
    result = "no block" if not row.plant and row.result == "as-expected" else RESULTS[row.result]
    return (
        row.exercise, _signed(row.true_size), f"{row.gate} {_signed(row.change)}" if row.gate else "-",
        _interval(row.change_low, row.change_high), row.verdict or "-", str(row.pairs), f"{row.minutes:.1f}", result,
        cause,
    )  # fmt: skip


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"below {_signed(high)}" if high is not None else f"above {_signed(low)}" if low is not None else "-"
    return f"{_signed(low)} to {_signed(high)}"


def _signed(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:+.3g} %"


def board_json(report: BoardReport) -> str:
    """The board, and the pooled false blocks under ``false_blocks``."""
    return json.dumps(
        {**report.board.model_dump(mode="json"), "false_blocks": report.pooled.model_dump(mode="json")},
        indent=1, sort_keys=True, ensure_ascii=False,
    ) + "\n"  # fmt: skip
