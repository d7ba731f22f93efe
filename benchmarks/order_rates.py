"""Simulate CSVs of pairs: what a known order, a stated one and none make of drifts, and of a head on two levels.

``benchmarks/error_rates.py`` writes what :func:`section` makes into docs/error-rates.txt; ``python
benchmarks/order_rates.py`` alone takes a quarter of an hour and puts a fresh section into the page that is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from claimed_rate import ClaimedRate
from numpy.typing import NDArray
from page_sections import merged
from scipy import special

from perfgate.judge.comparison import parse_gate
from perfgate.judge.outcome import PASSED
from perfgate.judge.pair_order import ONE_LOOK, of_table, why_unknown
from perfgate.judge.rule import decide
from perfgate.record.csv_table import Values
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.estimate import ROUNDING
from perfgate.stats.signs import MOST_FLIPPED

Floats = NDArray[np.float64]
Case = Literal["ignorable", "must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Pairs of a CSV\n"
SEED = 20261129
RUNS = 20_000
FEW_PAIRS = 7
"""Up to so many pairs five times as many tables are simulated: one in 128 is on one of two levels, near 1 %."""
CONFIDENCE = 0.99
PAIR_SD = 0.0007
"""Of the pairs of an H200, as elsewhere on the page."""
WIDER = 20
"""Times as much where the head is slower by ``must_catch``: there few tables block before they could pass."""
GATE = parse_gate("itl_median:0.02%:0.15%")
CASES: tuple[Case, ...] = ("ignorable", "must_catch")
PAIRS = (5, 7, 10, 24)
DRIFTS = {
    "none": "nothing drifts",
    "linear": "each trial is slower than the one before by 1.5 pair sds",
    "falling": "the same, faster",
    "settling": "the first trial is slower by 30 pair sds, and half of what is left goes with each trial",
    "steps": "one to three steps of 5 pair sds each, up or down, at random trials",
    "place": "no drift; the second trial of a pair is slower by 1.5 pair sds",
    "place, faster": "the same, faster",
    "wander": "a random walk, with steps of one pair sd a trial",
    "two levels": "no drift; restarts of the head lie on two levels 20 pair sds apart, on each as often",
    "t2": "no drift; trials follow a t distribution with 2 degrees of freedom",
    "exponential": "no drift; trials have a long tail, exponential",
    "contaminated": "no drift; one trial in ten spreads ten times as much",
}
ORDERS = {
    "column, alternating": "the column says that the sides took turns",
    "column, even": "the column says an order drawn from all that are balanced within one and do not lean",
    "stated": "a coin for each pair, not all alike, and `--order randomised`",
    "unknown, base first": "no column; the base was always first",
    "unknown, head first": "no column; the head was always first",
}


@dataclass(frozen=True)
class Row(ClaimedRate):
    """One truth, counted.

    Args:
        order: Of :data:`ORDERS`.
        drift: Of :data:`DRIFTS`.
        pairs: How many.
        case: How much slower the head is.
        runs: Simulated tables.
        blocked: Of these.
        passed: Of these.
    """

    order: str
    drift: str
    pairs: int
    case: Case
    runs: int
    blocked: int
    passed: int

    @property
    def wrong(self) -> int:
        """Tables with the error whose rate is declared for this case."""
        return self.passed if self.case == "must_catch" else self.blocked

    @property
    def declared(self) -> float:
        """The rate declared for that error."""
        return BETA if self.case == "must_catch" else ALPHA

    @property
    def confidence(self) -> float:
        """Of each of its bounds."""
        return CONFIDENCE

    @property
    def standing(self) -> str:
        """What the simulation says of the claim; of an unknown order none is made where the place itself costs."""
        blind = self.order.startswith("unknown") and self.drift.startswith("place") and self.case == "must_catch"
        return "none made" if blind else super().standing


def levels(drift: str, rng: np.random.Generator, runs: int, pairs: int, unit: float) -> Floats:
    """Logarithm of the machine's speed at each trial, shape (runs, pairs, 2), by the sd of pairs."""
    trials = 2 * pairs
    t = np.arange(trials)
    if drift in ("linear", "falling"):
        found = np.broadcast_to(1.5 * unit * t * (1 if drift == "linear" else -1), (runs, trials))
    elif drift == "settling":
        found = np.broadcast_to(30 * unit * 0.5**t, (runs, trials))
    elif drift == "steps":
        count = rng.integers(1, 4, (runs, 1))
        heights = 5 * unit * rng.choice([-1.0, 1.0], (runs, 3)) * (np.arange(3) < count)
        found = np.einsum("rk,rkt->rt", heights, rng.integers(1, trials, (runs, 3))[..., None] <= t)
    elif drift.startswith("place"):
        found = np.broadcast_to(1.5 * unit * (t % 2) * (-1 if "faster" in drift else 1), (runs, trials))
    elif drift == "wander":
        found = np.cumsum(unit * rng.standard_normal((runs, trials)), axis=1)
    else:
        found = np.zeros((runs, trials))
    return found.reshape(runs, pairs, 2)


def head_first(order: str, rng: np.random.Generator, runs: int, pairs: int) -> NDArray[np.bool_]:
    """Whether the head runs first, shape (runs, pairs)."""
    if order == "stated":
        coins = rng.random((runs, pairs)) < 0.5  # noqa: PLR2004 (a coin)
        while (alike := np.isin(coins.sum(axis=1), (0, pairs))).any():
            coins[alike] = rng.random((int(alike.sum()), pairs)) < 0.5  # noqa: PLR2004 (a coin)
        return coins
    if order.startswith("unknown"):
        return np.full((runs, pairs), "head" in order)
    turns: NDArray[np.bool_] = (np.arange(pairs)[None, :] + rng.integers(0, 2, (runs, 1))) % 2 == 1
    if order == "column, even":
        turns = rng.permuted(turns, axis=1)
        while leaning := [n for n, row in enumerate(turns.tolist()) if why_unknown(row, drawn=False)]:
            turns[leaning] = rng.permuted(turns[leaning], axis=1)
    return turns


def values(row: tuple[str, str, int, Case], runs: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Base and head of each pair, shape (runs, pairs), and which ran first; the head is slower by the case's margin."""
    order, drift, pairs, case = row
    rng = np.random.default_rng([SEED, *order.encode(), *drift.encode(), pairs, len(case)])
    unit = PAIR_SD * (WIDER if case == "must_catch" else 1)
    first, level = head_first(order, rng, runs, pairs), levels(drift, rng, runs, pairs, unit)
    noise = unit / math.sqrt(2) * of_trials(drift, rng, (2, runs, pairs))
    slower = math.log1p(GATE.gate.ignorable if case == "ignorable" else GATE.gate.must_catch)
    base = np.where(first, level[..., 1], level[..., 0]) + noise[0]
    head = np.where(first, level[..., 0], level[..., 1]) + noise[1] + slower
    if drift == "two levels":
        head += 10 * unit * rng.choice([-1.0, 1.0], (runs, pairs))
    return np.exp(base), np.exp(head), first


def of_trials(drift: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """What trials differ by besides, in sds of a normal trial."""
    if drift == "t2":
        return rng.standard_t(2, shape)
    if drift == "exponential":
        return rng.exponential(size=shape)
    normal = rng.standard_normal(shape)
    return normal * np.where(rng.random(shape) < 0.1, 10, 1) if drift == "contaminated" else normal  # noqa: PLR2004


def decided(order: str, base: Floats, head: Floats, first: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    """Which tables block and which pass, by a copy of :mod:`perfgate.judge.pair_order` for many tables at once."""
    d, pairs = np.log(head) - np.log(base), base.shape[1]
    mean, error = d.mean(axis=1), d.std(axis=1, ddof=1) / math.sqrt(pairs)
    ignorable, must_catch = math.log1p(GATE.gate.ignorable), math.log1p(GATE.gate.must_catch)
    alpha, beta = ALPHA * ONE_LOOK, BETA * ONE_LOOK
    blocks = special.stdtr(pairs - 1, (ignorable - mean) / error) <= alpha
    if order.startswith("column"):
        seconds, firsts = first.sum(axis=1), (~first).sum(axis=1)
        means = [(d * one).sum(axis=1) / count for one, count in ((~first, firsts), (first, seconds))]
        own = np.where(first, means[1][:, None], means[0][:, None])
        adjusted = np.sqrt(((d - own) ** 2).sum(axis=1) / (pairs - 2) * (1 / firsts + 1 / seconds)) / 2
        blocks &= special.stdtr(pairs - 2, (ignorable - (means[0] + means[1]) / 2) / adjusted) <= alpha
    if order.startswith("unknown"):
        blocks = np.zeros_like(blocks)
        level = (np.log(base) + np.log(head)) / 2
        steps = np.diff(level, axis=1)
        error = np.hypot(error, np.sqrt((steps**2).mean(axis=1) / 2) / (math.sqrt(2) * (pairs - 1)))
        moved = np.abs(level[:, -1] - level[:, 0]) / (2 * (pairs - 1))
        d, mean = d + moved[:, None], mean + moved
    passes = special.stdtr(pairs - 1, (mean - must_catch) / error) <= beta
    blocks[blocks] = by_signs(d[blocks] - ignorable) <= alpha
    passes[passes] = by_signs(must_catch - d[passes]) <= beta
    return blocks, passes & ~blocks


def by_signs(d: Floats) -> Floats:
    """One-sided p of the signs of tables, shape (tables,), as :class:`perfgate.stats.signs.FlippedEstimate` has it.

    Args:
        d: Shape (tables, pairs).
    """
    pairs, ways = d.shape[1], 2 ** min(d.shape[1], MOST_FLIPPED) - 1
    if pairs <= MOST_FLIPPED:
        taken = (np.arange(1, ways + 1)[None, :] >> np.arange(pairs)[:, None]) & 1
    else:
        drawn = np.random.default_rng(pairs)
        taken = np.stack([drawn.integers(0, 2, ways) for _ in range(pairs)])
    bound = ROUNDING * taken.sum(axis=0)
    below = [(part @ taken.astype(float) <= bound).sum(axis=1) for part in np.array_split(d, -(-len(d) // 500) or 1)]
    p: Floats = (np.concatenate(below) + 1) / (ways + 1)
    return p


def disagreements(order: str, base: Floats, head: Floats, first: NDArray[np.bool_]) -> int:
    """How many tables the project's own functions decide otherwise than :func:`decided`."""
    wrong = 0
    known = order.startswith("column")
    for n, (blocks, passes) in enumerate(zip(*decided(order, base, head, first), strict=True)):
        told = Values(tuple(base[n]), tuple(head[n]), head_first=tuple(first[n].tolist()) if known else ())
        (found,) = decide([of_table(GATE, told, drawn=order == "stated")], ALPHA, BETA)
        wrong += (found.verdict == "regressed") != blocks or (found.verdict in PASSED) != passes
    return wrong


def simulate(order: str, drift: str, pairs: int, case: Case, runs: int = RUNS) -> Row:
    """Count what becomes of simulated tables."""
    blocks, passes = decided(order, *values((order, drift, pairs, case), runs))
    return Row(order, drift, pairs, case, runs, int(blocks.sum()), int(passes.sum()))


def simulate_all(runs: int = RUNS) -> list[Row]:
    """Every row."""
    places = ((order, drift, pairs, case) for case in CASES for order in ORDERS for drift in DRIFTS for pairs in PAIRS)
    return [
        simulate(*place, runs * (5 if place[2] <= FEW_PAIRS else 1) // (2 if place[2] > MOST_FLIPPED else 1))
        for place in places
    ]


ROWS = len(CASES) * len(ORDERS) * len(DRIFTS)

HEAD = """
Written by `benchmarks/order_rates.py` (seed {seed}); {runs:,} simulated tables a row (of up to seven pairs ten times as
many, of ten twice), one gate with margins of 0.02 % and 0.15 %, pairs that spread by 0.07 % besides. The head is slower
by exactly `ignorable` (claim: at most 1 % block), or with pairs that spread 20 times as much by `must_catch` (claim: at
most 5 % pass). {verdict}
A table has one look, which spends 0.8 of either rate, and Student's t must agree with the signs of the pairs: all of
six pairs are on the slower of two levels in one table of 64.

Orders:

{orders}

Machines and heads:

{drifts}

Of 5, 7, 10 and 24 pairs, each row shows the number with the most errors. No claim is made for a pass in an unknown
order where the place itself costs something: no figure of such a table tells that, and its pass has the caution
`advisory-unpaired`.

"""


def section(rows: Sequence[Row]) -> str:
    """The section of the page."""
    claims = [row for row in rows if row.standing != "none made"]
    refuted = sum("refuted" in row.standing and "not" not in row.standing for row in claims)
    verdict = f"{sum(row.standing == 'shown' for row in claims)} of {len(claims)} claims are shown, {refuted} refuted."
    lists = ["\n".join(f"- {name}: {about}" for name, about in of.items()) for of in (ORDERS, DRIFTS)]
    runs = min(row.runs for row in rows)
    parts = [TITLE, HEAD.format(seed=SEED, runs=runs, verdict=verdict, orders=lists[0], drifts=lists[1])]
    columns = ("order", "drift", "pairs", "slower by", "blocked", "passed", "inconclusive", "at most", "claim")
    parts.append(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n")
    errors = sorted(rows, key=lambda row: -row.wrong / row.runs)
    places = ((case, order, drift) for case in CASES for order in ORDERS for drift in DRIFTS)
    shown = [next(row for row in errors if (row.case, row.order, row.drift) == place) for place in places]
    parts += [f"| {' | '.join(cells(row))} |\n" for row in shown]
    return "".join(parts)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    counts = (row.blocked, row.passed, row.runs - row.blocked - row.passed)
    rates = [f"{rate * 100:.2f} %" for rate in (*(count / row.runs for count in counts), row.most)]
    return [row.order, row.drift, str(row.pairs), f"`{row.case}`", *rates, row.standing]


def main() -> None:
    """Simulate and put the section into the page."""
    PAGE.write_text(merged(PAGE.read_text(), section(simulate_all())))


if __name__ == "__main__":
    main()
