"""The board of a campaign: which plants the gate caught, with which cause, and how often it blocked without one.

A board is a function of a campaign's folder. Boards of one class of machines add up: a handful of runs of the same
build bounds the rate of false blocks only loosely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from perfgate import __version__, gate
from perfgate.drill.campaign import REFUSED, Drill, Exercise, Refused, is_open, read_drill, run_of
from perfgate.drill.plants import Plant
from perfgate.errors import ExitStatus, RecordError
from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome, Verdict
from perfgate.machine.fingerprint import machine_class
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen, Note
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import Record, read_records
from perfgate.report.causes import told_causes
from perfgate.report.run_folders import DRILL
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds

BOARD = "board.json"
MINUTE_NS = 60e9
DECIDED = ("as-expected", "false-block", "undecided")
"""Results of a run of one build that came to its end."""

FIGURES = ("change", "change_low", "change_high", "must_catch", "pair_sd")
"""What a row has of its gate."""

Result = Literal["as-expected", "missed", "small", "undecided", "elsewhere", "false-block", "not-measured", "open"]
"""What became of an exercise. ``elsewhere``: blocked by another gate than the plant's. ``small``: it passed, and is
smaller than the gate must catch. ``open``: nothing has been decided yet."""


class BoardRow(Frozen):
    """One exercise.

    Args:
        exercise: Its name.
        plant: Empty for one build against itself.
        family: The plant's.
        size: Of its dial with the unit; empty where it has none.
        expected: The metric whose gate must block it, or what must be seen in its place.
        result: What became of it.
        verdict: The run's; ``None`` where there is none.
        gate: The gate that the figures are of.
        true_size: Slowdown by construction, a ratio minus one; ``None`` where it is only measured.
        change: Of the gate's metric, head over base minus one.
        change_low: End of its interval.
        change_high: The other end.
        must_catch: The gate's margin.
        pair_sd: Standard deviation of its pairs' log ratios.
        pairs: Pairs of timed trials.
        minutes: That the trials took.
        cause: Whether the cause was named; ``None`` where none was to be.
        told: The sentence that named it, or those that did not.
        why: Why it was not measured, or decided.
    """

    exercise: str
    plant: str = ""
    family: str = ""
    size: str = ""
    expected: str = ""
    result: Result = "open"
    verdict: Verdict | None = None
    gate: str = ""
    true_size: float | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    must_catch: float | None = None
    pair_sd: float | None = None
    pairs: int = 0
    minutes: float = 0.0
    cause: bool | None = None
    told: str = ""
    why: str = ""


class Board(Frozen):
    """A campaign's results; ``board.json``.

    Args:
        perfgate: The version that judged.
        name: The campaign's.
        scenario: Names of its cells.
        machine_class: The machines that measured; empty before one has.
        alpha: The declared rate of false blocks of a run.
        beta: The declared rate of missed regressions of a gate.
        rows: In the order of the campaign.
        left_out: Plants that were asked for and not run, and why.
    """

    format: Literal["perfgate-board/1"] = "perfgate-board/1"
    perfgate: str
    name: str
    scenario: tuple[str, ...]
    machine_class: str
    alpha: float
    beta: float
    rows: tuple[BoardRow, ...]
    left_out: tuple[Note, ...] = ()


class FalseBlocks(Frozen):
    """How often one build was blocked against itself.

    Args:
        boards: Names of the campaigns that are counted.
        verdicts: Runs of one build against itself that ended in a verdict.
        blocked: Those that ended regressed.
        at_least: Exact lower bound of the rate, one-sided at 95 %.
        at_most: Exact upper bound; 1 where there is no run.
    """

    boards: tuple[str, ...]
    verdicts: int
    blocked: int
    at_least: float
    at_most: float


def read_board(file: Path) -> Board:
    """A board that an earlier campaign wrote.

    Raises:
        RecordError: It is none, or another version wrote it.
    """
    return read_model(Board, file)


def write_board(folder: Path, board: Board) -> None:
    """Keep a board in its campaign's folder."""
    write_model(folder / BOARD, board)


def make_board(folder: Path) -> Board:
    """Judge every run of a campaign again.

    Raises:
        RecordError: The folder holds no campaign, or a run in it is not what the campaign says.
    """
    drill = read_drill(folder)
    classes: set[str] = set()
    names: dict[str, None] = {}
    rows = []
    for exercise in drill.exercises:
        begun = run_of(folder, exercise)
        row, note = _blank(exercise), folder / exercise.name / REFUSED
        if begun is None:
            rows.append(_refused(row, note))
            continue
        run = read_manifest(begun)
        if run.subjects != exercise.sides(drill.base) or tuple(c.cell_id for c in run.plan.cells) != drill.cells:
            raise RecordError(f"not the exercise that {DRILL} names: other subjects or cells", where=str(begun))
        outcome, records = gate.outcome_of(begun), list(read_records(begun, run))
        classes |= {machine_class(v.machine, record.cell.clocks.mode) for record in records for v in record.visits}
        names |= dict.fromkeys(cell.name for cell in run.plan.cells)
        row = _row(row, exercise, drill, outcome, records)
        rows.append(_refused(row.model_copy(update={"result": "open"}), note) if is_open(run, records) else row)
    if len(classes) > 1:
        raise RecordError(f"measured on {len(classes)} classes of machines: {', '.join(sorted(classes))}",
                          where=str(folder))  # fmt: skip
    return Board(
        perfgate=__version__, name=drill.name, scenario=tuple(names), machine_class="".join(classes), alpha=ALPHA,
        beta=BETA, rows=tuple(rows), left_out=drill.left_out,
    )  # fmt: skip


def _blank(exercise: Exercise) -> BoardRow:
    plant = exercise.plant
    if plant is None:
        return BoardRow(exercise=exercise.name, expected="no block")
    expect = plant.expect
    seen = expect.metric if expect.verdict == "regressed" else expect.caution or expect.reason or expect.verdict
    unit = plant.dial.unit if plant.dial else ""
    size = f"{exercise.size} {unit}".strip() if exercise.size else ""
    return BoardRow(exercise=exercise.name, plant=plant.name, family=plant.family, size=size, expected=seen)


def _refused(row: BoardRow, note: Path) -> BoardRow:
    """The row, with what perfgate said where it refused to go on with the exercise."""
    if not note.exists():
        return row
    refused = read_model(Refused, note)
    return row.model_copy(update={"result": "not-measured", "why": f"{refused.code}: {refused.text}".strip(": ")})


def _row(blank: BoardRow, exercise: Exercise, drill: Drill, outcome: Outcome, records: Sequence[Record]) -> BoardRow:
    plant, cell = exercise.plant, outcome.cells[0]
    shown = _gate_shown(cell, plant)
    made_s = plant.step_s(drill.device, exercise.size) if plant else None
    true_size = made_s / shown.base if made_s and shown and shown.base else None
    gates = shown.reasons if shown else ()
    filled = blank.model_copy(
        update={
            "verdict": outcome.verdict,
            "pairs": cell.pairs,
            "minutes": sum(trial.duration_ns for record in records for trial in record.trials) / MINUTE_NS,
            "true_size": true_size,
            "why": "; ".join(f"{n.code}: {n.text}" for n in (*outcome.reasons, *cell.reasons, *gates)),
            **({name: getattr(shown, name) for name in FIGURES} | {"gate": shown.metric} if shown else {}),
        }
    )
    result = _result(filled, plant, outcome)
    cause, sentence = (None, "")
    if plant is not None and result in ("as-expected", "elsewhere"):
        cause, sentence = _cause(plant, drill, outcome)
    return filled.model_copy(update={"result": result, "cause": cause, "told": sentence})


def _gate_shown(cell: CellOutcome, plant: Plant | None) -> GateOutcome | None:
    """The gate that must block the plant, that which blocked of several; else the cell's first."""
    wanted = plant.expect.gates(gate.metric for gate in cell.gates) if plant else ()
    mine = [gate for gate in cell.gates if gate.metric in wanted] or cell.gates
    return min(mine, key=lambda gate: gate.verdict != "regressed", default=None)


def _result(row: BoardRow, plant: Plant | None, outcome: Outcome) -> Result:
    verdict = outcome.verdict
    if plant is None:
        return _result_of_the_same(verdict)
    expect = plant.expect
    if expect.verdict != "regressed":
        codes = {note.code for cell in outcome.cells for note in (*cell.reasons, *cell.cautions)}
        wanted = {code for code in (expect.caution, expect.reason) if code}
        seen = wanted <= codes if wanted else verdict == expect.verdict
        return "as-expected" if seen else "missed"
    if expect.gates(gate.metric for cell in outcome.cells for gate in cell.gates if gate.verdict == "regressed"):
        return "as-expected"
    if verdict == "regressed":
        return "elsewhere"
    if verdict in ("pass", "improved"):
        size, margin = row.true_size, row.must_catch
        return "small" if size is not None and margin is not None and size < margin else "missed"
    return _result_of_the_same(verdict)


def _result_of_the_same(verdict: Verdict) -> Result:
    if verdict == "regressed":
        return "false-block"
    if verdict in ("pass", "improved"):
        return "as-expected"
    return "undecided" if verdict == "inconclusive" else "not-measured"


def _cause(plant: Plant, drill: Drill, outcome: Outcome) -> tuple[bool | None, str]:
    """Whether a sentence of the report names the plant's cause, and which does."""
    pattern = plant.expect.cause.get(drill.device)
    if pattern is None:
        return None, ""
    sentences = [text for cell in outcome.cells for text in told_causes(cell)]
    named = next((text for text in sentences if re.search(pattern, text, re.IGNORECASE)), None)
    return named is not None, named or " ".join(sentences)


def false_blocks(boards: Iterable[Board]) -> FalseBlocks:
    """How often one build was blocked against itself, over boards of one class of machines; each counts once."""
    names: dict[str, Board] = {board.name: board for board in boards}
    same = [row for board in names.values() for row in board.rows if not row.plant and row.result in DECIDED]
    blocked = sum(row.result == "false-block" for row in same)
    low, high = rate_bounds(blocked, len(same))
    return FalseBlocks(boards=tuple(names), verdicts=len(same), blocked=blocked, at_least=low, at_most=high)


def boards_beside(folder: Path, machine: str, tell: Callable[[str], object]) -> Iterator[Board]:
    """Boards of other campaigns in the same folder of runs, of the same class of machines.

    One that cannot be read is told of and left out: it costs a campaign that was measured nothing.
    """
    for file in sorted(folder.resolve().parent.glob(f"*/{BOARD}")):
        if file.parent == folder.resolve():
            continue
        try:
            board = read_board(file)
        except RecordError as error:
            tell(f"not counted: {error.finding}")
        else:
            if board.machine_class == machine:
                yield board


def exit_status(board: Board, pooled: FalseBlocks) -> ExitStatus:
    """10 where the gate has gone blind or cries wolf, 22 or 20 where it is not known, else 0.

    One false block in a campaign is what alpha allows now and then: it counts where the rate is shown to be above it.
    """
    results = {row.result for row in board.rows}
    unnamed = any(row.cause is False for row in board.rows)
    if "missed" in results or pooled.at_least > board.alpha:
        return ExitStatus.REGRESSED
    if results & {"not-measured", "open"}:
        return ExitStatus.NOT_MEASURED
    if unnamed or results & {"undecided", "elsewhere", "false-block"}:
        return ExitStatus.INCONCLUSIVE
    return ExitStatus.PASS
