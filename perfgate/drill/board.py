"""The board of a campaign: which plants the gate caught, with which cause, and how often it blocked without one.

A board is a function of a campaign's folder. Boards of one class of machines add up: a handful of runs of the same
build bounds the rate of false blocks only loosely.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from perfgate import __version__, gate
from perfgate.drill.campaign import REFUSED, Drill, Exercise, LeftOut, Refused, is_open, run_of
from perfgate.drill.plants import Plant
from perfgate.errors import ExitStatus, RecordError, Verdict
from perfgate.judge.outcome import EXACT_ENDS, WORST_FIRST, CellOutcome, GateOutcome, Outcome
from perfgate.machine.fingerprint import Machine, machine_class
from perfgate.machine.versioned_json import read_model
from perfgate.models import Frozen
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import DRILL
from perfgate.record.run_record import Record, read_records
from perfgate.report.document import Document, Section
from perfgate.report.story import sentences_of
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds
from perfgate.units import percent, plural

BOARD = "board.json"
MINUTE_NS = 60e9
CAUSES = (*EXACT_ENDS, "one-sided-failures", "preempted")
"""Reasons that say what is different about the head; others may quote a log or a traceback, which names anything."""
DECIDED = ("as-expected", "false-block", "undecided")  # results of a run of one build that came to its end
FIGURES = ("change", "change_low", "change_high", "must_catch", "pair_sd")  # what a row has of its gate
PASSES: tuple[Verdict, ...] = ("pass", "improved")
WORST = tuple(WORST_FIRST)

# What became of an exercise. `elsewhere`: blocked by another gate than the plant's. `small`: it passed, and is smaller
# than the gate must catch. `open`: nothing has been decided yet.
Result = Literal["as-expected", "missed", "small", "undecided", "elsewhere", "false-block", "not-measured", "open"]
ONE_BUILD: dict[Verdict, Result] = {
    "regressed": "false-block", "pass": "as-expected", "improved": "as-expected", "inconclusive": "undecided",
}  # fmt: skip


class BoardRow(Frozen):
    """One exercise."""

    exercise: str
    plant: str = ""  # empty for one build against itself
    family: str = ""
    size: str = ""  # of its dial with the unit; empty where it has none
    expected: str = ""  # the metric whose gate must block it, or what must be seen in its place
    result: Result = "open"
    verdict: Verdict | None = None  # the run's; `None` where there is none
    gate: str = ""  # the gate that the figures are of
    true_size: float | None = None  # slowdown by construction, a ratio minus one; `None` where it is only measured
    change: float | None = None  # of the gate's metric, head over base minus one
    change_low: float | None = None  # end of its interval
    change_high: float | None = None
    must_catch: float | None = None  # the gate's margin
    pair_sd: float | None = None  # standard deviation of its pairs' log ratios
    pairs: int = 0  # pairs of timed trials
    minutes: float = 0.0  # that the trials took
    cause: bool | None = None  # whether the cause was named; `None` where none was to be
    told: str = ""  # the sentence that named it, or those that did not
    why: str = ""  # why it was not measured, or decided


class Board(Frozen):
    """A campaign's results; ``board.json``."""

    format: Literal["perfgate-board/1"] = "perfgate-board/1"
    perfgate: str  # the version that judged
    name: str
    scenario: tuple[str, ...]  # names of its cells
    machine_class: str  # the machines that measured; empty before one has
    alpha: float  # the declared rate of false blocks of a run
    beta: float  # the declared rate of missed regressions of a gate
    rows: tuple[BoardRow, ...]  # in the order of the campaign
    left_out: tuple[LeftOut, ...] = ()  # plants that were asked for and not run, and why


class FalseBlocks(Frozen):
    """How often one build was blocked against itself."""

    boards: tuple[str, ...]  # names of the campaigns whose runs are counted
    verdicts: int  # runs of one build against itself that ended in a verdict
    blocked: int  # those that ended regressed
    at_least: float  # exact lower bound of the rate, one-sided at 95 %
    at_most: float  # exact upper bound; 1 where there is no run


def make_board(folder: Path) -> Board:
    """Judge every run of a campaign again.

    Raises:
        RecordError: The folder holds no campaign, or a run in it is not what the campaign says.
    """
    drill = read_model(Drill, folder / DRILL)
    machines: list[tuple[Machine, str]] = []
    names: dict[str, None] = {}
    rows = []
    for exercise in drill.exercises:
        fields, begun = _declared(exercise), run_of(folder, exercise)
        unfinished = begun is None
        if begun is not None:
            run = read_manifest(begun)
            if run.subjects != exercise.sides(drill.base) or tuple(c.cell_id for c in run.plan.cells) != drill.cells:
                raise RecordError(f"not the exercise that {DRILL} names: other subjects or cells", where=str(begun))
            records = list(read_records(begun, run))
            machines += [(visit.machine, record.cell.clocks.mode) for record in records for visit in record.visits]
            names |= dict.fromkeys(cell.name for cell in run.plan.cells)
            fields |= _judged(exercise, drill, gate.judged(begun, run, records), records)
            unfinished = is_open(run, records) and fields["result"] != "false-block"
            if unfinished:
                fields |= {"result": "open", "cause": None, "told": ""}
        if unfinished and (note := folder / exercise.name / REFUSED).exists():
            refused = read_model(Refused, note)
            fields |= {"result": "not-measured", "why": f"{refused.code}: {refused.text}".strip(": ")}
        rows.append(BoardRow(**fields))
    return Board(
        perfgate=__version__, name=drill.name, scenario=tuple(names), machine_class=_class_of(machines, folder),
        alpha=ALPHA, beta=BETA, rows=tuple(rows), left_out=drill.left_out,
    )  # fmt: skip


def _class_of(machines: Sequence[tuple[Machine, str]], folder: Path) -> str:
    """The class of the machines that measured, with as many GPUs as the smallest of their engines takes."""
    fewest = min((len(machine.gpus) for machine, _ in machines), default=0)
    classes = {
        machine_class(machine.model_copy(update={"gpus": machine.gpus[:fewest]}), mode) for machine, mode in machines
    }
    if len(classes) > 1:
        raise RecordError(f"measured on {len(classes)} classes of machines: {', '.join(sorted(classes))}",
                          where=str(folder))  # fmt: skip
    return "".join(classes)


def _declared(exercise: Exercise) -> dict[str, Any]:
    """The fields of an exercise's row that are known before it runs."""
    plant = exercise.plant
    if plant is None:
        return {"exercise": exercise.name, "expected": "no block"}
    expect = plant.expect
    seen = expect.metric if expect.verdict == "regressed" else expect.caution or expect.reason or expect.verdict
    size = f"{exercise.size} {plant.dial.unit if plant.dial else ''}".strip() if exercise.size else ""
    return {"exercise": exercise.name, "plant": plant.name, "family": plant.family, "size": size, "expected": seen}


def _judged(exercise: Exercise, drill: Drill, outcome: Outcome, records: Sequence[Record]) -> dict[str, Any]:
    """The fields that its outcome gives; the gate shown is the worst of those that must block it, or of all."""
    plant = exercise.plant
    made_s = plant.step_s(drill.device, exercise.size) if plant else None
    gates = [(cell, gate) for cell in outcome.cells for gate in cell.gates]
    deciding = [(cell, gate) for cell, gate in gates if plant and plant.expect.gates([gate.metric])]
    cell, shown = min(
        deciding or gates, key=lambda pair: WORST.index(pair[1].verdict), default=(outcome.cells[0], None)
    )
    result = _result(plant, outcome, [(gate, _true_size(made_s, gate)) for _, gate in deciding])
    notes = (*outcome.reasons, *cell.reasons, *(shown.reasons if shown else ()))
    fields: dict[str, Any] = {
        "result": result,
        "verdict": outcome.verdict,
        "pairs": cell.pairs,
        "minutes": sum(trial.duration_ns for record in records for trial in record.trials) / MINUTE_NS,
        "why": "; ".join(f"{note.code}: {note.text}" for note in notes),
    }
    if shown is not None:
        fields |= {name: getattr(shown, name) for name in FIGURES}
        fields |= {"gate": shown.metric, "true_size": _true_size(made_s, shown)}
    pattern = plant.expect.cause.get(drill.device) if plant else None
    if pattern is not None and result in ("as-expected", "elsewhere"):
        sentences = [text for cell in outcome.cells for text in told_causes(cell)]
        named = next((text for text in sentences if re.search(pattern, text, re.IGNORECASE)), None)
        fields |= {"cause": named is not None, "told": named or " ".join(sentences)}
    return fields


def _true_size(made_s: float | None, gate: GateOutcome) -> float | None:
    return made_s / gate.base if made_s and gate.base else None


def _result(plant: Plant | None, outcome: Outcome, deciding: Sequence[tuple[GateOutcome, float | None]]) -> Result:
    """What became of an exercise; ``deciding`` are the gates that must block it, each with the plant's true size."""
    verdict = outcome.verdict
    of_one_build = ONE_BUILD.get(verdict, "not-measured")
    if plant is None:
        return of_one_build
    expect, must_block = plant.expect, plant.expect.verdict == "regressed"
    if must_block:
        seen = any(gate.verdict == "regressed" for gate, _ in deciding)
    else:
        codes = {note.code for cell in outcome.cells for note in (*cell.reasons, *cell.cautions)}
        seen = verdict in (*PASSES, expect.verdict) and {expect.caution, expect.reason} - {None} <= codes
    if seen:
        return "as-expected"
    if verdict == "regressed":
        return "false-block" if expect.verdict == "pass" else "elsewhere"
    if must_block and deciding and all(gate.verdict in PASSES for gate, _ in deciding):
        return "small" if all(size is not None and size < gate.must_catch for gate, size in deciding) else "missed"
    return "missed" if verdict in PASSES else of_one_build


def told_causes(cell: CellOutcome) -> Iterator[str]:
    """Every sentence that says why a cell is slower, and what blocked it."""
    yield from (gate.metric for gate in cell.gates if gate.verdict == "regressed")
    yield from sentences_of(cell, "grown")
    yield from (note.text for note in cell.reasons if note.code in CAUSES)


def false_blocks(boards: Iterable[Board]) -> FalseBlocks:
    """How often one build was blocked against itself, over boards that are alike; each counts once, as it comes first.

    A copy of a board may be older than the campaign's own, which therefore comes before all others.
    """
    names: dict[str, list[BoardRow]] = {}
    for board in boards:
        names.setdefault(board.name, [row for row in board.rows if not row.plant and row.result in DECIDED])
    same = [row for rows in names.values() for row in rows]
    blocked = sum(row.result == "false-block" for row in same)
    low, high = rate_bounds(blocked, len(same))
    counted = tuple(name for name, rows in names.items() if rows)
    return FalseBlocks(boards=counted, verdicts=len(same), blocked=blocked, at_least=low, at_most=high)


def boards_like(board: Board, folder: Path, named: Iterable[tuple[Path, Board]], tell: Callable[[str], object]
                ) -> Iterator[Board]:  # fmt: skip
    """Boards of the same scenario and class of machines: what others block says nothing of this one.

    Campaigns in the same folder of runs count, and boards that were asked for, which come with their files. What does
    not count is told: it costs a campaign that was measured nothing.
    """
    measured = board.scenario, board.machine_class
    for file in sorted(folder.resolve().parent.glob(f"*/{BOARD}")):
        if file.parent == folder.resolve():
            continue
        try:
            beside = read_model(Board, file)
        except RecordError as error:
            tell(f"not counted: {error.finding}")
        else:
            if (beside.scenario, beside.machine_class) == measured:
                yield beside
    for file, other in named:
        if (other.scenario, other.machine_class) == measured:
            yield other
        else:
            what = f"{', '.join(other.scenario)} on {other.machine_class}"
            tell(f"not counted: {file}: a board of {what}, not of what this campaign measured")


def exit_status(board: Board, pooled: FalseBlocks) -> ExitStatus:
    """10 where the gate has gone blind or cries wolf, 22 or 20 where it is not known, else 0.

    Plants that were all left out show nothing.

    One false block in a campaign is what alpha allows now and then: it counts where the rate is shown to be above it.
    """
    results = {row.result for row in board.rows}
    none_of_them = bool(board.left_out) and not any(row.plant for row in board.rows)
    unnamed = any(row.cause is False for row in board.rows)
    if "missed" in results or pooled.at_least > board.alpha:
        return ExitStatus.REGRESSED
    if none_of_them or results & {"not-measured", "open"}:
        return ExitStatus.NOT_MEASURED
    if unnamed or results & {"undecided", "elsewhere", "false-block"}:
        return ExitStatus.INCONCLUSIVE
    return ExitStatus.PASS


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
