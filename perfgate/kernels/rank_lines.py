"""What the ranks of an engine do in a decode step: one table, the slowest rank first, and sentences about it."""

from __future__ import annotations

from collections.abc import Iterator

from perfgate.kernels.outcomes import RankOutcome, RanksOutcome
from perfgate.metrics.sides import SIDES, Side
from perfgate.report.document import Section
from perfgate.units import format_value, percent, signed_us

COLUMNS = (
    ("slowest in", "slowest"), ("own work", "own_s"), ("transfer", "transfer_s"), ("waiting", "waiting_s"),
    ("hidden", "hidden"), ("arrives last", "last"), ("host work", "work_s"), ("host slack", "slack_s"),
    ("begins after", "begins_s"), ("outside", "outside"),
)  # fmt: skip
"""Headings and the figures below them; those ending in ``_s`` are seconds, the others shares."""
GIVE_WAY = (5, 9, 6, 7, 8, 3)
"""Columns that move below their row where the table is too wide: hidden, begins after, arrives last, those of the host,
transfer."""


def ranks_section(ranks: RanksOutcome) -> Section:
    """A row a rank and side, then what to see in them."""
    shown = [column for column in COLUMNS if any(column[1] in rank.figures for rank in ranks.ranks)]
    ordered = sorted(ranks.ranks, key=lambda rank: rank.label != ranks.worst)
    rows = [("a decode step by rank", *(heading for heading, _ in shown))]
    rows += [row for rank in ordered for row in _rows(rank, [name for _, name in shown])]
    give_way = tuple(1 + shown.index(COLUMNS[place - 1]) for place in GIVE_WAY if COLUMNS[place - 1] in shown)
    return Section(rows=rows, lines=tuple(_lines(ranks, ordered)), importance=2, give_way=give_way)


def _rows(rank: RankOutcome, names: list[str]) -> Iterator[tuple[str, ...]]:
    sides = [side for side in SIDES if any(side in own for own in rank.figures.values())]
    for side in sides:
        yield f"{rank.label} {side}", *(_figure(name, rank.figures.get(name, {}).get(side)) for name in names)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format_value(value, "s") if name.endswith("_s") else percent(value)


def _lines(ranks: RanksOutcome, ordered: list[RankOutcome]) -> Iterator[str]:
    worst = ordered[0]
    often = " and ".join(f"{percent(share)} of the steps of {side}" for side, share in worst.figures["slowest"].items())
    yield f"{worst.label} is the slowest in {often}; figures of the step as a whole are of the slowest rank in each"
    yield from _waiting(worst, ordered[1:])
    skew = " and ".join(f"{format_value(value, 's')} on {side}" for side, value in ranks.skew_s.items())
    yield f"from the first rank's begin of a step to the last one's: {skew}"
    for rank in ordered:
        if rank.change_s is not None:
            parts = ", ".join(f"{name} {signed_us(value, 1)}" for name, value in rank.parts.items() if value)
            yield f"{rank.label}: {signed_us(rank.change_s, 1)} a step{f': {parts}' if parts else ''}"


def _waiting(worst: RankOutcome, others: list[RankOutcome]) -> Iterator[str]:
    """For how long the others wait, on the side judged."""
    for side in reversed(SIDES):
        waits = [(own[side], rank.label) for rank in others if side in (own := rank.figures.get("waiting_s", {}))]
        if waits:
            most, label = max(waits)
            yield f"{label} of {side} waits most for other ranks: {format_value(most, 's')} a step{_of(worst, side)}"
            return


def _of(worst: RankOutcome, side: Side) -> str:
    own = worst.figures.get("waiting_s", {}).get(side)
    return "" if own is None else f"; {worst.label} waits {format_value(own, 's')}"
