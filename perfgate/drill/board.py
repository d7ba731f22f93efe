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
from perfgate.drill.campaign import REFUSED, Drill, Exercise, LeftOut, Refused, is_open, read_drill, run_of
from perfgate.drill.plants import Expected, Plant
from perfgate.errors import ExitStatus, RecordError, Verdict
from perfgate.judge.outcome import EXACT_ENDS, WORST_FIRST, CellOutcome, GateOutcome, Outcome
from perfgate.machine.fingerprint import Machine, machine_class
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import DRILL
from perfgate.record.run_record import Record, read_records
from perfgate.report.closing_sentence import sentences_of
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds

BOARD = "board.json"
MINUTE_NS = 60e9
CAUSES = (*EXACT_ENDS, "one-sided-failures", "preempted")
"""Reasons that say what is different about the head; others may quote a log or a traceback, which names anything."""
DECIDED = ("as-expected", "false-block", "undecided")
"""Results of a run of one build that came to its end."""

FIGURES = ("change", "change_low", "change_high", "must_catch", "pair_sd")
"""What a row has of its gate."""

PASSES: tuple[Verdict, ...] = ("pass", "improved")
WORST = tuple(WORST_FIRST)

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
    left_out: tuple[LeftOut, ...] = ()


class FalseBlocks(Frozen):
    """How often one build was blocked against itself.

    Args:
        boards: Names of the campaigns whose runs are counted.
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
    machines: list[tuple[Machine, str]] = []
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
        records = list(read_records(begun, run))
        machines += [(visit.machine, record.cell.clocks.mode) for record in records for visit in record.visits]
        names |= dict.fromkeys(cell.name for cell in run.plan.cells)
        row = _row(row, exercise, drill, gate.judged(begun, run, records), records)
        if is_open(run, records) and row.result != "false-block":
            row = _refused(row.model_copy(update={"result": "open", "cause": None, "told": ""}), note)
        rows.append(row)
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
    plant = exercise.plant
    cell, shown = _shown(outcome, plant)
    made_s = plant.step_s(drill.device, exercise.size) if plant else None
    gates = shown.reasons if shown else ()
    filled = blank.model_copy(
        update={
            "verdict": outcome.verdict,
            "pairs": cell.pairs,
            "minutes": sum(trial.duration_ns for record in records for trial in record.trials) / MINUTE_NS,
            "true_size": _true_size(made_s, shown),
            "why": "; ".join(f"{n.code}: {n.text}" for n in (*outcome.reasons, *cell.reasons, *gates)),
            **({name: getattr(shown, name) for name in FIGURES} | {"gate": shown.metric} if shown else {}),
        }
    )
    result = _result(plant, made_s, outcome)
    cause, sentence = (None, "")
    if plant is not None and result in ("as-expected", "elsewhere"):
        cause, sentence = _cause(plant, drill, outcome)
    return filled.model_copy(update={"result": result, "cause": cause, "told": sentence})


def _shown(outcome: Outcome, plant: Plant | None) -> tuple[CellOutcome, GateOutcome | None]:
    """The gate that must block the plant and its cell, the worst of several; of all gates where none must."""
    gates = [(cell, gate) for cell in outcome.cells for gate in cell.gates]
    own = _own(outcome, plant)
    mine = [pair for pair in gates if pair[1] in own] or gates
    return min(mine, key=lambda pair: WORST.index(pair[1].verdict), default=(outcome.cells[0], None))


def _own(outcome: Outcome, plant: Plant | None) -> list[GateOutcome]:
    """The gates that must block a plant."""
    gates = [gate for cell in outcome.cells for gate in cell.gates]
    return [gate for gate in gates if plant.expect.gates([gate.metric])] if plant else []


def _true_size(made_s: float | None, gate: GateOutcome | None) -> float | None:
    return made_s / gate.base if made_s and gate and gate.base else None


def _result(plant: Plant | None, made_s: float | None, outcome: Outcome) -> Result:
    verdict = outcome.verdict
    if plant is None:
        return _result_of_the_same(verdict)
    expect, own = plant.expect, _own(outcome, plant)
    if expect.verdict != "regressed":
        return _result_unblocked(expect, outcome)
    if any(gate.verdict == "regressed" for gate in own):
        return "as-expected"
    if verdict == "regressed":
        return "elsewhere"
    if own and all(gate.verdict in PASSES for gate in own):
        sizes = [(_true_size(made_s, gate), gate.must_catch) for gate in own]
        return "small" if all(size is not None and size < margin for size, margin in sizes) else "missed"
    return "missed" if verdict in PASSES else _result_of_the_same(verdict)


def _result_unblocked(expect: Expected, outcome: Outcome) -> Result:
    """Of a plant that must be seen without a block: a verdict that was not expected is what it is."""
    verdict = outcome.verdict
    if verdict == "regressed":
        return "elsewhere" if expect.verdict == "not-measured" else "false-block"
    if verdict not in PASSES and verdict != expect.verdict:
        return _result_of_the_same(verdict)
    codes = {note.code for cell in outcome.cells for note in (*cell.reasons, *cell.cautions)}
    if {code for code in (expect.caution, expect.reason) if code} <= codes:
        return "as-expected"
    return "missed" if verdict in PASSES else _result_of_the_same(verdict)


def _result_of_the_same(verdict: Verdict) -> Result:
    if verdict == "regressed":
        return "false-block"
    if verdict in PASSES:
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

    Args:
        board: The campaign's.
        folder: The campaign's: other campaigns in the same folder of runs count.
        named: Boards that were asked for, with their files.
        tell: Given a sentence about each that was asked for or cannot be read, and does not count: it costs a campaign
            that was measured nothing.
    """
    for file in sorted(folder.resolve().parent.glob(f"*/{BOARD}")):
        if file.parent == folder.resolve():
            continue
        try:
            beside = read_board(file)
        except RecordError as error:
            tell(f"not counted: {error.finding}")
        else:
            if _alike(beside) == _alike(board):
                yield beside
    for file, other in named:
        if _alike(other) == _alike(board):
            yield other
        else:
            found = f"{', '.join(other.scenario)} on {other.machine_class}"
            tell(f"not counted: {file}: a board of {found}, not of what this campaign measured")


def _alike(board: Board) -> tuple[tuple[str, ...], str]:
    return board.scenario, board.machine_class


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
