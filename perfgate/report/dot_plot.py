"""The pairs of a cell in characters, one after the other, for the report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import PASSED
from perfgate.metrics.catalogue import find_metric
from perfgate.report.document import Section
from perfgate.report.outcome_document import outcome_document
from perfgate.report.outcome_lines import gate_name
from perfgate.report.record_charts import states_of, usual_state
from perfgate.report.run_page import MeasuredRun
from perfgate.report.story import CellStory
from perfgate.report.text import to_text
from perfgate.units import signed_percent

HEIGHT = 7
COLUMNS = 3  # of a pair: its number has two digits
INDENT = 4
MOST_CELLS = 3  # of a run with more cells only those that did not pass are drawn
SIGNS = {"fast": "\u25cf", "slow": "\u25cb", "mixed": "x", "cut": "\u00b7"}
LEGEND = "\u25cf fast, \u25cb slow, x sides in different states, \u00b7 no state known"


def terminal_text(measured: MeasuredRun, width: int) -> str:
    """The report for a terminal of so many columns, with a plot of a cell's pairs under its table."""
    many = measured.run is not None and len(measured.run.plan.cells) > MOST_CELLS

    def plot(cell: CellStory) -> Section | None:
        passed = cell.outcome.verdict in PASSED and many
        evidence = None if passed else measured.evidence(cell.outcome)
        return pairs_section(evidence, cell, width) if evidence else None

    return to_text(replace(outcome_document(measured.outcome, plot), width=width))


def pairs_section(evidence: Evidence, cell: CellStory, width: int) -> Section | None:
    """The pairs in the order they were taken, by the gate to speak of; ``None`` where there are fewer than two."""
    gate = cell.lead
    if gate is None or not evidence.paired:
        return None
    metric = find_metric(gate.metric)
    pairs = metric.known_pairs(evidence.pairs(metric.kind))
    if len(pairs) < 2:  # noqa: PLR2004 (one alone shows no spread)
        return None
    states = states_of(evidence, cell.outcome) if gate.kind == "timed" else None
    looks = {n: [usual_state(side) for side in sides] for n, sides in enumerate(states or ())}
    dots = [
        (
            n + 1,
            head / base - 1,
            SIGNS[looks[n][0] if looks[n][0] == looks[n][1] else "mixed"] if n in looks else SIGNS["fast"],
        )
        for n, base, head in pairs
    ]
    lines = (*_plot(dots, gate.limit, width), *([LEGEND] if looks else []))
    lead = f"  {gate_name(gate)}, head beside base, pair by pair"
    return Section(lead=lead, lines=tuple(f"  {line}" for line in lines), style="commands", importance=2)


def _plot(dots: Sequence[tuple[int, float, str]], limit: float, width: int) -> list[str]:
    """Rows from the largest change to the smallest, with no change and the margin among them; then the numbers."""
    room = width - len("+99.99 %  must_catch") - INDENT - 2
    shown = dots[-max(room // COLUMNS, 1) :]
    values = [limit, 0.0, *(change for _, change, _ in shown)]
    low, high = min(values), max(values)

    def row(change: float) -> int:
        return round((high - change) / (high - low) * (HEIGHT - 1))

    labels = {row(value): signed_percent(value, 2) for value in (low, high, limit, 0.0)}
    indent = max(map(len, labels.values()))
    rows = []
    for at in range(HEIGHT):
        edge, fill, name = "\u2502", " ", ""
        if at == row(limit):
            edge, fill, name = "\u2560", "\u2550", "  must_catch"
        if at == row(0.0):
            edge, fill, name = "\u251c", "\u2500", "  no change"
        cells = [(sign if row(change) == at else fill).rjust(COLUMNS, fill) for _, change, sign in shown]
        rows.append(f"{labels.get(at, '').rjust(indent)} {edge}{''.join(cells)}{name}".rstrip())
    numbers = "".join(str(number % 100).rjust(COLUMNS) for number, *_ in shown)
    return [*rows, f"{' ' * indent}  {numbers}"]
