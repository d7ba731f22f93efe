"""Simulate CSVs of pairs on machines that drift: what a known order, a stated one and none make of them.

``benchmarks/error_rates.py`` writes what :func:`section` makes into docs/error-rates.md; ``python
benchmarks/order_rates.py`` alone takes a minute and puts a fresh section into the page that is there.
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
from scipy import special

from perfgate.judge.comparison import parse_gate
from perfgate.judge.outcome import PASSED
from perfgate.judge.pair_order import FEWEST_FLIPPED, of_table, why_unknown
from perfgate.judge.rule import decide
from perfgate.record.csv_table import Values
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.estimate import sign_flips
from perfgate.stats.sequential import one_look

Floats = NDArray[np.float64]
Case = Literal["ignorable", "must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.md"
TITLE = "## Pairs of a CSV on a machine that drifts\n"
SEED = 20261129
RUNS = 10_000
CONFIDENCE = 0.99
PAIR_SD = 0.0007
"""Of the pairs of an H200, as elsewhere on the page."""
GATE = parse_gate("itl_median:0.02%:0.15%")
CASES: tuple[Case, ...] = ("ignorable", "must_catch")
PAIRS = (4, 6, 7, 12, 24)
DRIFTS = {
    "none": "nothing drifts",
    "linear": "each trial is slower than the one before by 1.5 pair sds",
    "falling": "the same, faster",
    "settling": "the first trial is slower by 30 pair sds, and half of what is left goes with each trial",
    "steps": "one to three steps of 5 pair sds each, up or down, at random trials",
    "place": "no drift; the second trial of a pair is slower by 1.5 pair sds",
    "place, faster": "the same, faster",
    "wander": "a random walk, with steps of one pair sd a trial",
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


def levels(drift: str, rng: np.random.Generator, runs: int, pairs: int) -> Floats:
    """Logarithm of the machine's speed at each trial, shape (runs, pairs, 2)."""
    trials, unit = 2 * pairs, PAIR_SD
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
    first, level = head_first(order, rng, runs, pairs), levels(drift, rng, runs, pairs)
    noise = PAIR_SD / math.sqrt(2) * rng.standard_normal((2, runs, pairs))
    slower = math.log1p(GATE.gate.ignorable if case == "ignorable" else GATE.gate.must_catch)
    base = np.where(first, level[..., 1], level[..., 0]) + noise[0]
    head = np.where(first, level[..., 0], level[..., 1]) + noise[1] + slower
    return np.exp(base), np.exp(head), first


def decided(order: str, base: Floats, head: Floats, first: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    """Which tables block and which pass, by a copy of :mod:`perfgate.judge.pair_order` for many tables at once."""
    d, pairs = np.log(head) - np.log(base), base.shape[1]
    mean, error = d.mean(axis=1), d.std(axis=1, ddof=1) / math.sqrt(pairs)
    ignorable, must_catch = math.log1p(GATE.gate.ignorable), math.log1p(GATE.gate.must_catch)
    alpha, beta = ALPHA * one_look(pairs).block[0] or -1, BETA * one_look(pairs).pass_[0]
    blocks = special.stdtr(pairs - 1, (ignorable - mean) / error) <= alpha
    if order.startswith("column"):
        seconds, firsts = first.sum(axis=1), (~first).sum(axis=1)
        means = [(d * one).sum(axis=1) / count for one, count in ((~first, firsts), (first, seconds))]
        own = np.where(first, means[1][:, None], means[0][:, None])
        adjusted = np.sqrt(((d - own) ** 2).sum(axis=1) / (pairs - 2) * (1 / firsts + 1 / seconds)) / 2
        blocks &= special.stdtr(pairs - 2, (ignorable - (means[0] + means[1]) / 2) / adjusted) <= alpha
    if order == "stated" and pairs >= FEWEST_FLIPPED:
        blocks[blocks] = [sign_flips(row - ignorable) <= alpha for row in d[blocks]]
    if order.startswith("unknown"):
        blocks = np.zeros_like(blocks)
        level = (np.log(base) + np.log(head)) / 2
        steps = np.diff(level, axis=1)
        error = np.hypot(error, np.sqrt((steps**2).mean(axis=1) / 2) / (math.sqrt(2) * (pairs - 1)))
        mean = mean + np.abs(level[:, -1] - level[:, 0]) / (2 * (pairs - 1))
    passes = special.stdtr(pairs - 1, (mean - must_catch) / error) <= beta
    return blocks, passes & ~blocks


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
    return [simulate(*place, runs) for place in places]


SHOWN_PAIRS = (6, 12)
WORST = 4
"""Of the other numbers of pairs, rows of a case that are shown."""
ROWS = len(CASES) * (len(ORDERS) * len(DRIFTS) * len(SHOWN_PAIRS) + WORST)

HEAD = """
Written by `benchmarks/order_rates.py` (seed {seed}); {runs:,} simulated tables a row, one gate with margins of 0.02 %
and 0.15 %, pairs that spread by 0.07 % besides what drifts. The head is slower by exactly `ignorable` (claim: at most
1 % block) or `must_catch` (claim: at most 5 % pass). {verdict}

Orders:

{orders}

Drifts:

{drifts}

Shown are 6 and 12 pairs, and the worst four of 4, 7 and 24. No claim is made for a pass in an unknown order where the
place itself costs something: no figure of such a table tells that, and its pass has the caution `order-unknown`.

"""


def section(rows: Sequence[Row]) -> str:
    """The section of the page."""
    claims = [row for row in rows if row.standing != "none made"]
    refuted = sum("refuted" in row.standing and "not" not in row.standing for row in claims)
    verdict = f"{sum(row.standing == 'shown' for row in claims)} of {len(claims)} claims are shown, {refuted} refuted."
    lists = ["\n".join(f"- {name}: {about}" for name, about in of.items()) for of in (ORDERS, DRIFTS)]
    parts = [TITLE, HEAD.format(seed=SEED, runs=rows[0].runs, verdict=verdict, orders=lists[0], drifts=lists[1])]
    columns = ("order", "drift", "pairs", "slower by", "blocked", "passed", "inconclusive", "at most", "claim")
    parts.append(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n")
    others = [row for row in rows if row.pairs not in SHOWN_PAIRS]
    shown = [row for row in rows if row.pairs in SHOWN_PAIRS]
    for case in CASES:
        shown += sorted((row for row in others if row.case == case and row in claims), key=lambda row: -row.wrong)[
            :WORST
        ]
    parts += [f"| {' | '.join(cells(row))} |\n" for row in shown]
    return "".join(parts)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    counts = (row.blocked, row.passed, row.runs - row.blocked - row.passed)
    rates = [f"{rate * 100:.2f} %" for rate in (*(count / row.runs for count in counts), row.most)]
    return [row.order, row.drift, str(row.pairs), f"`{row.case}`", *rates, row.standing]


def main() -> None:
    """Simulate and put the section into the page: in the place of the one there, else at its end."""
    text = PAGE.read_text()
    before, _, rest = text.partition(f"\n{TITLE}")
    after = rest.partition("\n## ")[2]
    tail = f"\n## {after}" if after else ""
    PAGE.write_text(f"{before.rstrip()}\n\n{section(simulate_all())}{tail}")


if __name__ == "__main__":
    main()
