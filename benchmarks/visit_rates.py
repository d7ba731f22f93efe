"""Simulate one visit against a stored baseline's visits: how often it is blocked, by pairs, or passed wrongly.

``benchmarks/error_rates.py`` writes what :func:`section` makes into docs/error-rates.txt; ``python
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
from rule_twin import decide_all as decide_pairs
from scipy import special

from perfgate.baseline.visit_series import HALFWAY
from perfgate.drill.peer_rules import PASS, REGRESSED
from perfgate.judge.slow_share import LEANS
from perfgate.scenario.plan import ALPHA, BETA, orders_bound
from perfgate.stats.prediction import FIRST_PASSING_VISITS, FIRST_WARNING_VISITS, PAIRS_SHARE, PASS_SHARE, RAISED
from perfgate.stats.sequential import DEFAULT_SCHEDULE

Floats = NDArray[np.float64]
Case = Literal["ignorable", "must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## One visit against a stored baseline\n"
SEED = 20261122
RUNS = 40_000
VISITS = (4, 8, 12)
GATES = (1, 3)
CASES: tuple[Case, ...] = ("ignorable", "must_catch")
MARGINS = Margins(0.001, 0.005)
PAIRS, PAIR_SD, GAP = 6, 1e-3, 0.025
DECIDING_SD = 5e-3
"""Of pairs that follow visits: as far as these margins are decided, wider ones err most often."""
CORRELATION = 0.5
"""Between two gates of one visit."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


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
        anchored: Whether ratios to an anchor are compared.
        claim: ``kept``; ``advisory`` where such visits are not held against the head.
    """

    name: str
    about: str
    simulate: Callable[[np.random.Generator, int, int, int], Visits]
    anchored: bool = True
    claim: Literal["kept", "advisory"] = "kept"


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard normal."""
    return rng.standard_normal(shape)


def heavy(df: int) -> Draw:
    """Student's t of so many degrees of freedom, scaled so that the quartiles of 3 are those of sd 1."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.asarray(rng.standard_t(df, shape) / math.sqrt(3), dtype=np.float64)

    return draw


def skewed(sign: int) -> Draw:
    """Exponential, with the long tail towards slow (+1) or fast (-1) visits; mean 0 and sd 1."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return sign * (rng.exponential(1.0, shape) - 1)

    return draw


def contaminated(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Normal, and one visit in ten five times as far off."""
    return np.asarray(np.where(rng.random(shape) < 1 / 10, 5, 1) * rng.standard_normal(shape), dtype=np.float64)


def outliers(sign: int) -> Draw:
    """Normal, and one visit in ten slower (+1) or faster (-1) by six of its standard deviations."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.asarray(rng.standard_normal(shape) + 6 * sign * (rng.random(shape) < 1 / 10), dtype=np.float64)

    return draw


def two_levels(share: float) -> Draw:
    """A slow level with this share or a fast one, and a tenth of their distance besides."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        level = (rng.random(shape) < share).astype(np.float64) * 2 - 1
        return np.asarray(level + 0.2 * rng.standard_normal(shape), dtype=np.float64)

    return draw


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


def in_clusters(sd: float, size: int, share: float) -> Callable[[np.random.Generator, int, int, int], Visits]:
    """Visits in clusters of so many, as of one card, which make this share of the variance; the head is in none."""

    def simulate(rng: np.random.Generator, runs: int, gates: int, visits: int) -> Visits:
        each = correlated(rng, (runs, gates, -(-visits // size) + 1))
        common = np.concatenate([np.repeat(each[..., :-1], size, axis=-1)[..., :visits], each[..., -1:]], axis=-1)
        own = correlated(rng, (runs, gates, visits + 1))
        drawn = sd * (math.sqrt(share) * common + math.sqrt(1 - share) * own)
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
               independent(5e-4), anchored=False),
    VisitModel("nights, 0.2 %", "The same with sd 0.2 %.", independent(2e-3), anchored=False),
    VisitModel("AR(1), 0.5", "Times of one card; each night is half of the one before, and 0.1 % of its own.",
               in_a_row(1e-3, 0.5), anchored=False),
    VisitModel("AR(1), 0.8", "The same with 0.8 of the night before.", in_a_row(1e-3, 0.8), anchored=False),
    VisitModel("random walk", "Each night is the one before and 0.1 %.", in_a_row(1e-3, 1.0), anchored=False),
    VisitModel("drift", "The machine gets slower by 0.05 % every night; nights differ by 0.05 %.",
               in_a_row(5e-4, 0.0, 5e-4), anchored=False),
    VisitModel("restarts only", "Nights do not differ, restarts do by 0.2 %; the baseline has 12 a visit, the head 6.",
               fewer_restarts(2e-3, 12, 6), anchored=False),
    VisitModel("fleet", "Times of another card every day, 1.2 % apart; the head has a card of its own.",
               independent(1.2e-2), anchored=False),
    VisitModel("another card", "Times of one card, 0.06 % a night; the head is on another card, 1.2 % apart.",
               on_other_cards(1.2e-2, 6e-4), anchored=False, claim="advisory"),
    VisitModel("anchored", "Ratios to an anchor, 0.05 %. What the machine is like, on whichever day, is in both.",
               independent(5e-4)),
    VisitModel("anchored, another card", "All visits on one card, the head on another, 0.05 % as before.",
               on_other_cards(5e-4, 5e-4), claim="advisory"),
    VisitModel("anchored, jumps", "As anchored, six pairs that spread by 0.1 %, on GPUs whose states are 2.5 % apart "
               "and last five trials on average; a probe tells them, and pairs in one state count.",
               beside_jumping(5e-4, alike=True)),
    VisitModel("anchored, blind", "The same where no probe tells the states, so that all pairs count.",
               beside_jumping(5e-4, alike=False)),
    VisitModel("blind, two trials", "The same with states that last two trials on average.",
               beside_jumping(5e-4, alike=False, lasts=2)),
    VisitModel("blind after still visits", "The same on a GPU that jumps, and visits on others that never did.",
               beside_jumping(5e-4, alike=False, lasts=2, still=True)),
    VisitModel("blind, pairs of 0.3 %", "The same with pairs that spread by 0.3 %.",
               beside_jumping(5e-4, alike=False, lasts=2, still=True, pair_sd=3e-3)),
    VisitModel("re-anchored", "So many visits with the anchor before, and one with the anchor of the head.",
               linked(5e-4, 1)),
    VisitModel("t3", "Ratios to an anchor that follow a t distribution with 3 degrees of freedom, sd 0.1 %.",
               independent(1e-3, heavy(3))),
    VisitModel("t2", "The same with 2 degrees of freedom.", independent(1e-3, heavy(2))),
    VisitModel("exponential", "Ratios to an anchor, sd 0.1 %, with a long tail towards slow visits.",
               independent(1e-3, skewed(1))),
    VisitModel("exponential, fast", "The same towards fast visits.", independent(1e-3, skewed(-1))),
    VisitModel("contaminated", "Ratios of 0.1 %, of which one in ten is five times as far off.",
               independent(1e-3, contaminated)),
    VisitModel("slow outliers", "Ratios of 0.05 %, of which one in ten is six of these slower.",
               independent(5e-4, outliers(1))),
    VisitModel("fast outliers", "The same with faster ones.", independent(5e-4, outliers(-1))),
    VisitModel("clusters of two", "Ratios of 0.1 %, two by two alike: 80 % of the variance is between the clusters.",
               in_clusters(1e-3, 2, 0.8)),
    VisitModel("clusters of four", "The same in fours, with 50 % between the clusters.", in_clusters(1e-3, 4, 0.5)),
    VisitModel("one cluster", "The same in eights (a week of nights), with 50 % between the clusters.",
               in_clusters(1e-3, 8, 0.5)),
    VisitModel("two levels", "Ratios on two levels 0.4 % apart, equally often, within them 0.04 %.",
               independent(2e-3, two_levels(0.5))),
    VisitModel("a rare fast level", "The same, of which the fast one is rare: one in ten.",
               independent(2e-3, two_levels(0.9))),
    VisitModel("a rare slow level", "The same, of which the slow one is rare.", independent(2e-3, two_levels(0.1))),
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
        told: Runs of which visits say that they would regress, so that pairs are taken.
        blocked: Runs that pairs blocked then.
        passed: Runs that ended pass.
        first_passed: Runs in which the first gate passed.
    """

    model: VisitModel
    visits: int
    gates: int
    case: Case
    runs: int
    told: int
    blocked: int
    passed: int
    first_passed: int

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
        return super().standing if self.model.claim == "kept" else self.model.claim


PLACES = tuple(product(CASES, MODELS, VISITS, GATES))
"""Every row of the section."""
CONFIDENCE = 1 - 0.01 / len(PLACES)
"""Of each row's bounds, so that all of them hold together with 99 % (Bonferroni): where a rate is exactly the declared
one, bounds of 99 % each would refute one row in a hundred."""


class Decided(NamedTuple):
    """What visits say of runs and of their gates.

    Args:
        told: Which would regress, (runs,).
        gates_passed: (runs, gates).
    """

    told: NDArray[np.bool_]
    gates_passed: NDArray[np.bool_]


def decide_all(drawn: Visits, head: Floats, *, anchored: bool) -> Decided:
    """What visits say of every run at once; ``head`` is the mean of each gate's new visit, (runs, gates)."""
    sets = [drawn.means] if drawn.others is None else [drawn.means, drawn.others]
    most = max(rows.shape[-1] for rows in sets)
    freedom = sum(rows.shape[-1] - 1 for rows in sets)
    variance = sum(rows.var(axis=-1) * rows.shape[-1] for rows in sets) / freedom
    predicted = variance * (1 + 1 / drawn.means.shape[-1])
    to_warn, to_pass = (np.sqrt(by * predicted + drawn.excess) for by in (1.0 if anchored else RAISED, RAISED))
    off = head - drawn.means.mean(axis=-1)
    p = special.stdtr(most - 1, -(off - math.log1p(MARGINS.ignorable)) / to_warn)
    q = special.stdtr(most - 1, (off - math.log1p(MARGINS.must_catch)) / to_pass)
    if drawn.pairs is not None:
        pairs = np.sort(off[..., None] + drawn.pairs, axis=-1)
        low, high = math.log1p(MARGINS.ignorable), math.log1p(MARGINS.must_catch)
        halfway = low + HALFWAY * (high - low)
        contrary = pairs[..., 0] <= halfway
        q = np.where((pairs[..., -2] < halfway) & ~(contrary & (p <= BETA)), q, 1.0)  # all but one
        p = np.where(contrary, 1.0, p)
    told = (p.min(axis=1) <= ALPHA / p.shape[1]) & (most >= FIRST_WARNING_VISITS)  # Holm rejects the smallest first
    return Decided(told, (q <= BETA * PASS_SHARE) & (most >= FIRST_PASSING_VISITS))


def simulate(model: VisitModel, visits: int, gates: int, case: Case, runs: int = RUNS) -> VisitRow:
    """Count what the rule makes of simulated visits, and of pairs where these are taken."""
    rng = np.random.default_rng([SEED, visits, gates, CASES.index(case), *model.name.encode()])
    slow = np.zeros(gates)
    slow[:] = math.log1p(MARGINS.ignorable) if case == "ignorable" else 0.0
    slow[0] = math.log1p(getattr(MARGINS, case))
    drawn = model.simulate(rng, runs, gates, visits)
    decided = decide_all(drawn, drawn.expected + drawn.chance + slow, anchored=model.anchored)
    told = decided.told
    may_pass = ~told if drawn.leans is None else ~told & ~drawn.leans
    passed = decided.gates_passed & may_pass[:, None]
    ratios = slow[:, None] + DECIDING_SD * correlated(rng, (int(told.sum()), gates, DEFAULT_SCHEDULE.looks[-1]))
    pairs = decide_pairs(ratios, [MARGINS] * gates, beta=BETA * PAIRS_SHARE)
    passed[told] = pairs.gates == PASS
    passed[told] &= (pairs.runs != REGRESSED)[:, None]
    counted = (told, pairs.runs == REGRESSED, passed.all(axis=1), passed[:, 0])
    return VisitRow(model, visits, gates, case, runs, *(int(rows.sum()) for rows in counted))


TITLES: dict[Case, str] = {
    "ignorable": """### Every gate is slower by exactly `ignorable`

The claim is that at most {alpha} of runs block, all of them by pairs.
""",
    "must_catch": """### One gate is slower by exactly `must_catch`, the others are unchanged

The claim is that the slow gate passes in at most {beta} of runs; the column "wrong" counts it.
""",
}
HEAD = """
Written by `benchmarks/visit_rates.py` (seed {seed}); {runs:,} simulated runs a row, margins 0.1 % and 0.5 %, gates of a
visit correlated by one half; a test holds the simulated decisions to perfgate's own. The unit is the visit: one more is
held against 4, 8 or 12 earlier ones by a t prediction interval. Visits alone never block: "told" is how often they say
that a run would regress. Then pairs with the baseline's build are taken, here with a spread of 0.5 %, and decide by the
rule of pairs, at {pairs:g} of beta; "blocked" and "passed" hold what came of them. Visits pass from {passing} on, at
{share:g} of beta, and the variance of visits counts {raised:g} times for it; where times are compared, and not ratios
to an anchor, for "told" as well, for nights that follow each other are alike. The bounds "at least" and "at most" of
all rows hold together with 99 %. A rate is over baselines and heads: the visits of the one that somebody has may happen
to lie close together.

| visits | what they are |
|---|---|
"""
FOOT = """
No model is beyond the declared rates (95 % bounds), with visits and pairs together. By visits alone, without pairs, up
to 11 % of the heads at `ignorable` would be blocked ("told"), and with four visits up to 8 % of those at `must_catch`
would pass where visits lie on two levels: no rule can tell that from four. Where all visits are of one card and the
head is of another, nothing tells how far cards are apart, so such visits are not held against it
(`advisory-unpaired`).
"""
COLUMNS = ("visits", "how many", "gates", "told", "blocked", "passed", "undecided", "wrong", "at least", "at most",
           "claim")  # fmt: skip


def section(rows: Sequence[VisitRow]) -> str:
    """The section of the page."""
    parts = [
        TITLE,
        HEAD.format(
            seed=SEED,
            runs=rows[0].runs,
            raised=RAISED,
            passing=FIRST_PASSING_VISITS,
            share=PASS_SHARE,
            pairs=PAIRS_SHARE,
        ),
    ]
    parts += [f"| {model.name} | {model.about} |\n" for model in MODELS if any(row.model is model for row in rows)]
    for case in CASES:
        parts.append("\n" + TITLES[case].format(alpha=f"{ALPHA * 100:g} %", beta=f"{BETA * 100:g} %"))
        parts.append(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
        parts += [f"| {' | '.join(cells(row))} |\n" for row in rows if row.case == case]
    return "".join([*parts, FOOT])


def cells(row: VisitRow) -> list[str]:
    """A row of its case's table."""
    undecided = row.runs - row.blocked - row.passed
    counted = [count / row.runs for count in (row.told, row.blocked, row.passed, undecided, row.wrong)]
    shown = [f"{rate * 100:.2f} %" for rate in (*counted, row.least, row.most)]
    return [row.model.name, str(row.visits), str(row.gates), *shown, row.standing]


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
