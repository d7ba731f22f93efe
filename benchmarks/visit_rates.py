"""Simulate one visit against a stored baseline's visits: how often it is blocked or passed wrongly.

``benchmarks/error_rates.py`` writes what :func:`section` makes into docs/error-rates.md; ``python
benchmarks/visit_rates.py`` alone takes half a minute and puts a fresh section into the page that is there. All runs
of a row are decided at once by :func:`decide_all`, the twin of :class:`perfgate.baseline.visit_series.VisitSeries`
and :func:`perfgate.judge.rule.judge_series`; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from claimed_rate import ClaimedRate
from numpy.typing import NDArray
from rule_twin import Margins
from scipy import special

from perfgate.baseline.visit_series import HALFWAY
from perfgate.judge.slow_share import LEANS
from perfgate.scenario.plan import ALPHA, BETA, orders_bound
from perfgate.stats.prediction import RAISED

Floats = NDArray[np.float64]
Case = Literal["ignorable", "must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.md"
TITLE = "## One visit against a stored baseline\n"
SEED = 20261122
RUNS = 40_000
VISITS = (4, 6, 10)
GATES = (1, 3)
CASES: tuple[Case, ...] = ("ignorable", "must_catch")
MARGINS = Margins(0.001, 0.005)
PAIRS, PAIR_SD, GAP = 6, 1e-3, 0.025
CORRELATION = 0.5
"""Between two gates of one visit."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
Beyond = Callable[[Floats], Floats]


class Visits(NamedTuple):
    """Simulated baselines and the visit more of each; natural logarithms.

    Args:
        means: Of the visits that a head is held against, (runs, gates, visits).
        expected: What the head's mean is expected to be, given its baseline, (runs, gates).
        chance: By how much it varies about that, (runs, gates).
        others: Visits that tell of the spread alone, (runs, gates, others).
        excess: What the rule adds for a head of fewer restarts, a variance, (runs, gates).
        leans: Runs whose head was in the slow state so much more often than the anchor that nothing passes, (runs,).
        pairs: The head's pairs with its anchor about their median where nothing tells states, (runs, gates, pairs).
    """

    means: Floats
    expected: Floats
    chance: Floats
    others: Floats | None = None
    excess: Floats | float = 0.0
    leans: NDArray[np.bool_] | None = None
    pairs: Floats | None = None


@dataclass(frozen=True)
class VisitModel:
    """How visits of one build differ.

    Args:
        name: For the table.
        about: One sentence.
        simulate: Simulated baselines from (generator, runs, gates, visits).
        sd: Of the head's mean about what is expected of it.
        raised: 1 where ratios are compared, else :data:`perfgate.stats.prediction.RAISED`.
        beyond: How often a standard draw of the head's chance is larger; ``None`` where that is not worked out.
        claim: ``kept``; ``advisory`` where no verdict of such a baseline blocks; ``none`` where nothing is claimed.
    """

    name: str
    about: str
    simulate: Callable[[np.random.Generator, int, int, int], Visits]
    sd: float
    raised: float = RAISED
    beyond: Beyond | None = lambda x: special.ndtr(-x)
    claim: Literal["kept", "advisory", "none"] = "kept"


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard normal."""
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's t with 3 degrees of freedom, scaled to sd 1."""
    return np.asarray(rng.standard_t(3, shape) / math.sqrt(3), dtype=np.float64)


def two_modes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """A fast or a slow mode, equally likely, and a tenth of their distance besides."""
    return np.asarray(2 * rng.integers(0, 2, shape) - 1 + 0.2 * rng.standard_normal(shape), dtype=np.float64)


def correlated(rng: np.random.Generator, shape: tuple[int, ...], draw: Draw = normal) -> Floats:
    """Draws (runs, gates, visits) in which a gate takes the common one of its visit with probability sqrt(1/2)."""
    runs, _, visits = shape
    common, own = draw(rng, (runs, 1, visits)), draw(rng, shape)
    found: Floats = np.where(rng.random(shape) < math.sqrt(CORRELATION), common, own)
    return found


def independent(sd: float, draw: Draw = normal) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Visits that know nothing of one another."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        drawn = sd * correlated(rng, (runs, gates, visits + 1), draw)
        return Visits(drawn[..., :-1], np.zeros((runs, gates)), drawn[..., -1])

    return simulate


def in_a_row(sd: float, rho: float, drift: float = 0.0) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Nights that follow each other: AR(1) of that innovation's sd, a random walk at 1, and a drift a night."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        steps = sd * correlated(rng, (runs, gates, visits + 1))
        level = steps[..., 0] / math.sqrt(1 - rho**2) if rho < 1 else steps[..., 0]
        nights = [level]
        for night in range(1, visits):
            nights.append(rho * nights[-1] + steps[..., night])
        means = np.stack(nights, axis=-1) + drift * np.arange(visits)
        return Visits(means, rho * nights[-1] + drift * visits, steps[..., -1])

    return simulate


def on_other_cards(card_sd: float, own_sd: float) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """All visits on one card, the head on another."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        drawn = own_sd * correlated(rng, (runs, gates, visits + 1))
        cards = card_sd * correlated(rng, (runs, gates, 2))
        return Visits(drawn[..., :-1] + cards[..., :1], np.zeros((runs, gates)), drawn[..., -1] + cards[..., 1])

    return simulate


def linked(sd: float, overlapping: int) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Ratios to an anchor that was exchanged: the last visits were measured beside both, the newest one counts."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        drawn = sd * correlated(rng, (runs, gates, visits + overlapping + 1))
        before, now = drawn[..., :visits], drawn[..., visits:-1]
        return Visits(now, np.zeros((runs, gates)), drawn[..., -1], others=before)

    return simulate


def fewer_restarts(sd: float, more: int, fewer: int) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Visits that differ by their restarts alone, the head with fewer of them."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        means = sd / math.sqrt(more) * correlated(rng, (runs, gates, visits))
        head = sd / math.sqrt(fewer) * correlated(rng, (runs, gates, 1))[..., 0]
        freedom = visits * (more - 1)
        within = sd**2 * rng.chisquare(freedom, (runs, gates)) / freedom
        return Visits(means, np.zeros((runs, gates)), head, excess=within * (1 / fewer - 1 / more))

    return simulate


def beside_jumping(
    own_sd: float, *, alike: bool, lasts: int = 5, still: bool = False, pair_sd: float = PAIR_SD
) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Six pairs a visit on a GPU that changes its state between trials; each trial is wholly in one.

    States are :data:`GAP` apart. A run is not judged where a visit or the head has no pair to count, and does not pass
    where the head leans to the slow state.

    Args:
        own_sd: What a visit has of its own.
        alike: Whether a pair counts where both trials are in one state, as where a probe tells; else each does.
        lasts: After how many trials a state ends on average.
        still: Whether only the head's machine jumps, and those of the visits never.
        pair_sd: What pairs in one state spread by.
    """

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        own = own_sd * correlated(rng, (runs, gates, visits + 1))
        jumps = rng.random((runs, visits + 1, 2 * PAIRS)) < 1 / lasts
        jumps[..., 0] = rng.random((runs, visits + 1)) < 1 / 2
        slow = np.cumsum(jumps, axis=-1) % 2 == 1
        slow[:, :-1] &= not still
        # Which of a pair comes first does not matter here: what a state does to base and head is the same.
        base, head = slow[..., ::2], slow[..., 1::2]
        swap = rng.random(base.shape) < 1 / 2
        base, head = np.where(swap, head, base), np.where(swap, base, head)
        common = (base == head) | (not alike)
        counts = common.cumsum(axis=-1) <= common[:, -1:].sum(axis=-1, keepdims=True)
        ratios = pair_sd * normal(rng, (runs, gates, visits + 1, PAIRS))
        ratios += GAP * (head.astype(float) - base)[:, None]
        known = np.where((common & counts)[:, None], ratios, np.nan)
        ordered = np.sort(known, axis=-1)  # what is not known comes last
        number = (~np.isnan(known)).sum(axis=-1)
        low, high = (np.maximum(number - 1, 0) // 2)[..., None], (number // 2).clip(0, PAIRS - 1)[..., None]
        middle = (np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1))[..., 0] / 2
        means = own + middle
        told = Visits(means[..., :-1], np.zeros((runs, gates)), means[..., -1])
        if not alike:
            return told._replace(pairs=(known - middle[..., None])[:, :, -1])
        more, less = ((one & ~other)[:, -1].sum(axis=-1) for one, other in ((head, base), (base, head)))
        leans = orders_bound(1) * special.bdtrc(more - 1, more + less, 1 / 2) <= LEANS
        return told._replace(leans=leans & (more > 0))

    return simulate


MODELS = (
    VisitModel("nights, 0.05 %", "Times of one card, night by night; nights are independent, sd 0.05 %.",
               independent(5e-4), 5e-4),
    VisitModel("nights, 0.2 %", "The same with sd 0.2 %.", independent(2e-3), 2e-3),
    VisitModel("AR(1), 0.5", "Times of one card; each night is half of the one before, and 0.1 % of its own.",
               in_a_row(1e-3, 0.5), 1e-3),
    VisitModel("AR(1), 0.8", "The same with 0.8 of the night before.", in_a_row(1e-3, 0.8), 1e-3),
    VisitModel("random walk", "Each night is the one before and 0.1 %.", in_a_row(1e-3, 1.0), 1e-3),
    VisitModel("drift", "The machine gets slower by 0.05 % every night; nights differ by 0.05 %.",
               in_a_row(5e-4, 0.0, 5e-4), 5e-4),
    VisitModel("restarts only", "Nights do not differ, restarts do by 0.2 %; the baseline has 12 a visit, the head 6.",
               fewer_restarts(2e-3, 12, 6), 2e-3 / math.sqrt(6)),
    VisitModel("fleet", "Times of another card every day, 1.2 % apart; the head has a card of its own.",
               independent(1.2e-2), 1.2e-2),
    VisitModel("another card", "Times of one card, 0.06 % a night; the head is on another card, 1.2 % apart.",
               on_other_cards(1.2e-2, 6e-4), 1.2e-2, claim="advisory"),
    VisitModel("anchored", "Ratios to an anchor, 0.05 %. What the machine is like, on whichever day, is in both.",
               independent(5e-4), 5e-4, raised=1.0),
    VisitModel("anchored, cards", "The same on a card each, where the build differs from the anchor by 0.05 % more.",
               independent(math.hypot(5e-4, 5e-4)), math.hypot(5e-4, 5e-4), raised=1.0),
    VisitModel("anchored, another card", "All visits on one card, the head on another, 0.05 % as before.",
               on_other_cards(5e-4, 5e-4), math.hypot(5e-4, 5e-4), raised=1.0, claim="advisory"),
    VisitModel("anchored, jumps", "As anchored, six pairs that spread by 0.1 %, on GPUs whose states are 2.5 % apart "
               "and last five trials on average; a probe tells them, and pairs in one state count.",
               beside_jumping(5e-4, alike=True), 5e-4, raised=1.0, beyond=None),
    VisitModel("anchored, blind", "The same where no probe tells the states, so that all pairs count.",
               beside_jumping(5e-4, alike=False), 5e-4, raised=1.0, beyond=None),
    VisitModel("blind, two trials", "The same with states that last two trials on average.",
               beside_jumping(5e-4, alike=False, lasts=2), 5e-4, raised=1.0, beyond=None),
    VisitModel("blind after still visits", "The same on a GPU that jumps, and visits on others that never did.",
               beside_jumping(5e-4, alike=False, lasts=2, still=True), 5e-4, raised=1.0, beyond=None),
    VisitModel("blind, pairs of 0.3 %", "The same with pairs that spread by 0.3 %.",
               beside_jumping(5e-4, alike=False, lasts=2, still=True, pair_sd=3e-3), 5e-4, raised=1.0, beyond=None),
    VisitModel("re-anchored", "So many visits with the anchor before, and one with the anchor of the head.",
               linked(5e-4, 1), 5e-4, raised=1.0),
    VisitModel("re-anchored twice", "The same with two.", linked(5e-4, 2), 5e-4, raised=1.0),
    VisitModel("heavy-tailed", "Times that follow a t distribution with 3 degrees of freedom, sd 0.2 %.",
               independent(2e-3, heavy), 2e-3, claim="none",
               beyond=lambda x: special.stdtr(3, -x * math.sqrt(3))),
    VisitModel("two modes", "Times in two modes 0.4 % apart, within them 0.04 %.", independent(2e-3, two_modes), 2e-3,
               beyond=None, claim="none"),
)  # fmt: skip


@dataclass(frozen=True)
class VisitRow(ClaimedRate):
    """One simulated truth, counted.

    Args:
        model: How visits differ.
        visits: Visits of the baseline.
        gates: Gates of the run.
        case: All gates slower by exactly ``ignorable``, or the first by ``must_catch`` and the others by nothing.
        runs: Simulated runs.
        blocked: Runs that ended regressed.
        passed: Runs that ended pass.
        first_passed: Runs in which the first gate passed.
        worst_tenth: The rate of the error of one gate that a tenth of the baselines exceeds; ``None`` where that is
            not worked out.
    """

    model: VisitModel
    visits: int
    gates: int
    case: Case
    runs: int
    blocked: int
    passed: int
    first_passed: int
    worst_tenth: float | None = None

    @property
    def wrong(self) -> int:
        """Runs with the error whose rate is declared."""
        return self.blocked if self.case == "ignorable" else self.first_passed

    @property
    def declared(self) -> float:
        """The rate declared for it."""
        return ALPHA if self.case == "ignorable" else BETA

    @property
    def confidence(self) -> float:
        """Of each of its bounds."""
        return CONFIDENCE

    @property
    def standing(self) -> str:
        """What the simulation says of the claim."""
        if self.model.claim != "kept":
            return {"advisory": "advisory", "none": "none made"}[self.model.claim]
        return super().standing


PLACES = tuple(product(CASES, MODELS, VISITS, GATES))
"""Every row of the section."""
CONFIDENCE = 1 - 0.01 / len(PLACES)
"""Of each row's bounds, so that all of them hold together with 99 % (Bonferroni): where a rate is exactly the declared
one, bounds of 99 % each would refute one row in a hundred."""


class Decided(NamedTuple):
    """Verdicts of runs and of their gates, and where a head would be blocked or pass.

    Args:
        blocked: (runs,).
        gates_passed: (runs, gates).
        block_from: The head's mean, less that expected, from which one gate alone blocks, (runs, gates).
        pass_to: That up to which it passes.
    """

    blocked: NDArray[np.bool_]
    gates_passed: NDArray[np.bool_]
    block_from: Floats
    pass_to: Floats


def decide_all(drawn: Visits, head: Floats, raised: float) -> Decided:
    """Every run at once; ``head`` is the mean of each gate's new visit, (runs, gates)."""
    sets = [drawn.means] if drawn.others is None else [drawn.means, drawn.others]
    df = max(rows.shape[-1] for rows in sets) - 1
    freedom = sum(rows.shape[-1] - 1 for rows in sets)
    variance = sum(rows.var(axis=-1) * rows.shape[-1] for rows in sets) / freedom
    count = drawn.means.shape[-1]
    error = np.sqrt(raised * variance * (1 + 1 / count) + drawn.excess)
    off = head - drawn.means.mean(axis=-1)
    p = special.stdtr(df, -(off - math.log1p(MARGINS.ignorable)) / error)
    q = special.stdtr(df, (off - math.log1p(MARGINS.must_catch)) / error)
    if drawn.pairs is not None:
        pairs = np.sort(off[..., None] + drawn.pairs, axis=-1)
        low, high = math.log1p(MARGINS.ignorable), math.log1p(MARGINS.must_catch)
        halfway = low + HALFWAY * (high - low)
        contrary = pairs[..., 0] <= halfway
        q = np.where((pairs[..., -2] < halfway) & ~(contrary & (p <= BETA)), q, 1.0)  # all but one
        p = np.where(contrary, 1.0, p)
    blocked = p.min(axis=1) <= ALPHA / p.shape[1]  # Holm rejects something where it rejects the smallest
    centre = drawn.means.mean(axis=-1) - drawn.expected
    block_from = centre + math.log1p(MARGINS.ignorable) - special.stdtrit(df, ALPHA) * error
    pass_to = centre + math.log1p(MARGINS.must_catch) + special.stdtrit(df, BETA) * error
    return Decided(blocked, q <= BETA, block_from, pass_to)


def simulate(model: VisitModel, visits: int, gates: int, case: Case, runs: int = RUNS) -> VisitRow:
    """Count what the rule makes of simulated visits."""
    rng = np.random.default_rng([SEED, visits, gates, CASES.index(case), *model.name.encode()])
    slow = np.zeros(gates)
    slow[:] = math.log1p(MARGINS.ignorable) if case == "ignorable" else 0.0
    slow[0] = math.log1p(getattr(MARGINS, case))
    drawn = model.simulate(rng, runs, gates, visits)
    decided = decide_all(drawn, drawn.expected + drawn.chance + slow, model.raised)
    may_pass = ~decided.blocked if drawn.leans is None else ~decided.blocked & ~drawn.leans
    passed = decided.gates_passed.all(axis=1) & may_pass
    first_passed = decided.gates_passed[:, 0] & may_pass
    worst = None
    if model.beyond is not None:
        block = model.beyond((decided.block_from[:, 0] - slow[0]) / model.sd)
        passes = 1 - model.beyond((decided.pass_to[:, 0] - slow[0]) / model.sd)
        worst = float(np.quantile(block if case == "ignorable" else passes, 0.9))
    blocked, all_passed, wrongly = (int(rows.sum()) for rows in (decided.blocked, passed, first_passed))
    return VisitRow(model, visits, gates, case, runs, blocked, all_passed, wrongly, worst)


TITLES: dict[Case, str] = {
    "ignorable": """### Every gate is slower by exactly `ignorable`

The claim is that at most {alpha} of runs block.
""",
    "must_catch": """### One gate is slower by exactly `must_catch`, the others are unchanged

The claim is that the slow gate passes in at most {beta} of runs; the column "wrong" counts it.
""",
}
HEAD = """
Written by `benchmarks/visit_rates.py` (seed {seed}); {runs:,} simulated runs a row, margins 0.1 % and 0.5 %, gates of a
visit correlated by one half; a test holds the simulated decisions to perfgate's own. The unit is the visit: one more is
held against 4, 6 or 10 earlier ones by a t prediction interval. For independent normal visits that is exact, so that
the rate of one gate at exactly `ignorable` is alpha itself, and "not refuted" is all that a simulation can say. Where
times are compared, and not ratios to an anchor, the variance of visits counts {raised:g} times, for nights that follow
each other are alike. The bounds "at least" and "at most" of all rows hold together with 99 %.

A rate is over baselines and heads. Who has a baseline has that one, and its visits may happen to lie close together:
"a tenth" is the rate of that error, of one gate, that a tenth of the baselines exceeds. The declared rates are claimed
on average alone.

| visits | what they are |
|---|---|
"""
FOOT = """
Times of one card keep the declared rates whether nights are independent, follow each other or drift, and a slowdown of
0.5 % is blocked in 7 of 10 runs where nights differ by 0.05 %, in 1 of 20 where they differ by 0.2 %. Across cards they
catch next to nothing. A ratio to an anchor is as good on whichever card and day: at 0.05 % four visits block 92 % of
slowdowns of 0.5 %, six 99.7 %. An anchor that was exchanged blocks from the first visit on that was measured beside the
new one. Where all visits are of one card and the head is of another, nothing tells how far cards are apart: two of five
unchanged builds would be blocked, so such a verdict is advisory. No claim is made for times in modes: four visits that
lie in one of two know nothing of the other.
"""
COLUMNS = ("visits", "how many", "gates", "blocked", "passed", "inconclusive", "wrong", "a tenth", "at least",
           "at most", "claim")  # fmt: skip


def section(rows: Sequence[VisitRow]) -> str:
    """The section of the page."""
    parts = [TITLE, HEAD.format(seed=SEED, runs=rows[0].runs, raised=RAISED)]
    parts += [f"| {model.name} | {model.about} |\n" for model in MODELS if any(row.model is model for row in rows)]
    for case in CASES:
        parts.append("\n" + TITLES[case].format(alpha=f"{ALPHA * 100:g} %", beta=f"{BETA * 100:g} %"))
        parts.append(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
        parts += [f"| {' | '.join(cells(row))} |\n" for row in rows if row.case == case]
    return "".join([*parts, FOOT])


def cells(row: VisitRow) -> list[str]:
    """A row of its case's table."""
    undecided = row.runs - row.blocked - row.passed
    counted = [count / row.runs for count in (row.blocked, row.passed, undecided, row.wrong)]
    tenth = "-" if row.worst_tenth is None else f"{row.worst_tenth * 100:.1f} %"
    shown = [f"{rate * 100:.2f} %" for rate in (*counted, row.least, row.most)]
    return [row.model.name, str(row.visits), str(row.gates), *shown[:4], tenth, *shown[4:], row.standing]


def simulate_all(runs: int = RUNS) -> list[VisitRow]:
    """Every row, said as it is done."""
    rows = []
    for case, model, visits, gates in PLACES:
        rows.append(simulate(model, visits, gates, case, runs))
        print(case, *cells(rows[-1]), sep="  ", flush=True)
    return rows


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    before, _, after = PAGE.read_text().partition(f"\n{TITLE}")
    _, following, rest = after.partition("\n## ")
    PAGE.write_text(f"{before.rstrip()}\n\n{section(simulate_all())}{following}{rest}")


if __name__ == "__main__":
    main()
