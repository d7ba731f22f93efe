"""The rule within states for many simulated runs at once, and the project's own functions for one: they must agree.

:func:`decide_all` is the twin of what ``perfgate run`` does with the pairs of one cell on a machine with two states.
Its labels are made by the project's own functions; its tests are vectorised. :func:`decide_one` does all of it with
:mod:`perfgate.judge.state_series` and :func:`perfgate.judge.rule.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from many_runs import Margins
from numpy.typing import NDArray
from scipy import special
from state_models import ITERATIONS, PAIRS, Bools, Drawn, Floats

from perfgate.drill.replay import run_verdict
from perfgate.gate import parse_gate
from perfgate.judge.machine_states import GAP_LEVEL, Labeller, Source, alike
from perfgate.judge.rule import Series, decide
from perfgate.judge.slow_share import LEANS, SlowShare, slow_share
from perfgate.judge.state_series import AT_MOST, OWN_PAIRS, by_state
from perfgate.metrics.trial import LEAST_ITERATIONS, SLOWER, Iteration, Probes, Side, Trial
from perfgate.scenario.plan import ALPHA, BETA, GatePlan, orders_bound
from perfgate.stats import two_states
from perfgate.stats.sequential import (
    DEFAULT_SCHEDULE,
    FIRST_BLOCKING_PAIRS,
    FIRST_PASSING_PAIRS,
    INCONCLUSIVE,
    PASS,
    REGRESSED,
)

METRICS = ("itl_median", "e2e_median", "tpot_mean")
"""Of the gates, in order."""
STATES = (two_states.SLOW, two_states.FAST)
SCHEDULE = DEFAULT_SCHEDULE
LOOKS = SCHEDULE.looks
CODES = {"inconclusive": INCONCLUSIVE, "pass": PASS, "improved": PASS, "regressed": REGRESSED}
LEAST_PAIRS = 2
"""Pairs that have a spread."""

Integers = NDArray[np.int64]
Null = Literal["ignorable", "must_catch"]


@dataclass(frozen=True)
class Ends:
    """What simulated runs ended with.

    Args:
        runs: Verdict of each run, (runs,).
        first: Verdict of its first gate, the worst of that gate's states, (runs,).
        pairs: Pairs that each run took, (runs,).
        within: Whether it was compared within states, (runs,).
        by_share: Whether the slow state's share blocked it, (runs,).
        more: Pairs whose head was in the slow state more often, of those with a label on both sides, (runs,).
        labelled: How many those are, (runs,).
    """

    runs: NDArray[np.int8]
    first: NDArray[np.int8]
    pairs: Integers
    within: Bools
    by_share: Bools
    more: Integers
    labelled: Integers


class Measured:
    """Simulated runs with a slowdown, and their labels, each made once.

    Args:
        drawn: What they measured without one.
        slow: The slowdown of each gate, a ratio minus one; the marks have that of the first.
        margins: Of every gate.
        source: What tells the states.
        carried: Standard deviation of a subject that the error of every mean carries: ``draw_sd`` of the gates.
    """

    def __init__(
        self, drawn: Drawn, slow: Sequence[float], margins: Margins, source: Source, carried: float = 0.0
    ) -> None:
        factors = np.ones((len(slow), 1, 1, 2, 1))
        factors[:, 0, 0, 1, 0] = 1 + np.asarray(slow)
        self.margins, self.source, self.carried = margins, source, carried
        self.steps = np.round(drawn.marks * factors[0, ..., None])
        self.probes = drawn.probes
        others = np.round(drawn.values[: len(slow) - 1] * factors[1:])
        self.values = np.concatenate([(self.steps[..., 0] + self.steps[..., 1])[None] / 2, others])
        self._looks: dict[int, tuple[_Look, Bools]] = {}

    def look(self, number: int, chosen: Integers, gates: int) -> _Look:
        """What a look shows of chosen runs by their first gates; kept, since gates are decided in several numbers."""
        runs = len(self.steps)
        seen, done = self._looks.setdefault(number, (_Look.blank(len(self.values), runs), np.zeros(runs, bool)))
        fresh = chosen[~done[chosen]]
        if len(fresh):
            for name, found in vars(_look(self, number, fresh)).items():
                getattr(seen, name)[..., fresh] = found
            done[fresh] = True
        own = _chosen(seen, chosen)
        return replace(own, p=own.p[:gates], q=own.q[:gates], p_in=own.p_in[:, :gates], q_in=own.q_in[:, :gates],
                       slower_in_all=own.slower_in_all[:gates])  # fmt: skip

    def labels(self, look: int, null: Null, chosen: Integers) -> tuple[NDArray[np.int8], Bools]:
        """Labels of chosen runs under a null, (chosen, pairs, 2, iterations), and which of the runs have any."""
        probed = self.source == "probe"
        marks = self.probes[chosen, : 1 + look] if probed else self.steps[chosen, :look]
        slower = np.array([1.0, 1.0 if probed else 1 + getattr(self.margins, null)])[:, None, None]
        rows = (marks / slower).reshape(len(chosen), -1, ITERATIONS, 2)
        found = two_states.states_by_probe(rows, math.log(SLOWER)) if probed else two_states.states_by_steps(rows)
        labels = found.labels.reshape(len(chosen), -1, 2, ITERATIONS)[:, -look:]
        return labels, np.logical_and(*((labels == state).any(axis=(1, 2, 3)) for state in STATES))

    def log_ratios(self, chosen: Integers, look: int, kept: Bools | None = None) -> Floats:
        """Of the pairs of chosen runs, (gates, chosen, pairs); not a number where a trial has too few kept values."""
        return np.diff(self.logs(chosen, look, kept))[..., 0]

    def logs(self, chosen: Integers, look: int, kept: Bools | None = None) -> Floats:
        """Of the trials of chosen runs, (gates, chosen, pairs, 2); not a number where one has too few kept values."""
        return np.stack([
            np.log(_summary(values[chosen, :look], kept, median=metric != "tpot_mean"))
            for metric, values in zip(METRICS, self.values, strict=False)
        ])  # fmt: skip

    def gaps(self, look: int, labels: NDArray[np.int8], chosen: Integers) -> Floats:
        """Slow over fast decode steps of the base and the head, (2, chosen); not a number where one has one state."""
        logs = np.log(self.steps[chosen, :look]).mean(axis=-1)
        rows = [
            [np.where(labels[:, :, side] == state, logs[:, :, side], np.nan).reshape(len(chosen), look * ITERATIONS)
             for state in STATES]
            for side in range(2)
        ]  # fmt: skip
        return np.stack([np.subtract(*(_nanmedian(own) for own in side)) for side in rows])


def _nanmedian(rows: Floats) -> Floats:
    """Of the last axis, leaving out what is not a number; not a number where nothing is left."""
    some = ~np.isnan(rows).all(axis=-1)
    found = np.full(rows.shape[:-1], np.nan)
    found[some] = np.nanmedian(rows[some], axis=-1)
    return found


def _summary(values: Floats, kept: Bools | None, *, median: bool) -> Floats:
    """Median or mean of the last axis over what is kept."""
    if kept is None:
        kept = np.ones(values.shape, bool)
    count = kept.sum(axis=-1)
    few = count < LEAST_ITERATIONS
    if not median:
        return np.where(few, np.nan, np.where(kept, values, 0.0).sum(axis=-1) / np.maximum(count, 1))
    rows = np.sort(np.where(kept, values, np.inf), axis=-1)
    middle = (np.take_along_axis(rows, np.maximum(at, 0)[..., None], axis=-1)[..., 0]
              for at in ((count - 1) // 2, np.minimum(count // 2, rows.shape[-1] - 1)))  # fmt: skip
    return np.where(few, np.nan, sum(middle) / 2)


@dataclass
class _Look:
    """What one look showed of some runs: weighted p and q, (gates, runs), as they are and by state.

    States are on the first axis, and behind them their mean.
    """

    p: Floats
    q: Floats
    p_in: Floats
    q_in: Floats
    here: Bools
    shown: Bools
    used: Bools
    slower_in_all: Bools
    p_share: Floats
    leans: Bools
    more: Integers
    labelled: Integers

    @classmethod
    def blank(cls, gates: int, runs: int) -> _Look:
        """One that is yet to be filled."""
        states = len(STATES) + 1
        rows: list[tuple[tuple[int, ...], type]] = [
            ((gates,), float), ((gates,), float), ((states, gates), float), ((states, gates), float), ((states,), bool),
            ((states,), bool),
            ((), bool), ((gates,), bool), ((), float), ((), bool), ((), int), ((), int),
        ]  # fmt: skip
        return cls(*(np.zeros((*shape, runs), kind) for shape, kind in rows))


def decide_all(measured: Measured, gates: int) -> Ends:
    """Decide simulated runs look by look, by their first gates."""
    runs = len(measured.steps)
    ends = Ends(np.zeros(runs, np.int8), np.zeros(runs, np.int8), np.zeros(runs, np.int64), np.zeros(runs, bool),
                np.zeros(runs, bool), np.zeros(runs, np.int64), np.zeros(runs, np.int64))  # fmt: skip
    going = np.arange(runs)
    earlier: list[_Look] = []
    for number in range(len(LOOKS)):
        look = measured.look(number, going, gates)
        for old in earlier:
            _keep_smaller(look, old)
        verdicts, first, by_share = _verdicts(look)
        for into, own in (
            (ends.runs, verdicts), (ends.first, first), (ends.within, look.used), (ends.by_share, by_share),
            (ends.more, look.more), (ends.labelled, look.labelled),
        ):  # fmt: skip
            into[going] = own
        ends.pairs[going] = LOOKS[number]
        on = verdicts == INCONCLUSIVE
        going = going[on]
        earlier = [_chosen(look, on)]
        if not len(going):
            break
    return ends


def _look(measured: Measured, number: int, going: Integers) -> _Look:
    look, block, passing = LOOKS[number], SCHEDULE.block[number], SCHEDULE.pass_[number]
    ignorable, must_catch = np.log1p(measured.margins.ignorable), np.log1p(measured.margins.must_catch)
    probed = measured.source == "probe"
    over, has_over = measured.labels(look, "ignorable", going)
    under, has_under = (over, has_over) if probed else measured.labels(look, "must_catch", going)
    used = has_over & has_under
    gaps = np.stack([measured.gaps(look, own[used], going[used]) for own in (over, under)])
    split = np.where(np.isnan(gaps[:, 0]), gaps[:, 1], gaps[:, 0]).max(axis=0) > ignorable
    used[used], widest = split, np.nanmax(gaps, axis=(0, 1), initial=0.0)[split]
    d = measured.log_ratios(going, look)
    carried = 2 * measured.carried**2
    p, q = _weighted(_tail(d - ignorable, carried)[0], block), _weighted(_tail(must_catch - d, carried)[0], passing)
    p_in = np.stack([p] * (len(STATES) + 1))
    q_in = np.ones_like(p_in)  # what was measured before states were seen lets none of them pass
    here, shown = (np.zeros((len(STATES) + 1, len(going)), bool) for _ in range(2))
    differ = (over[used] != under[used]).any(axis=(1, 2, 3))
    samples = []
    seen = np.zeros(used.sum(), bool)
    for state in STATES:
        kept = over[used] == state
        seen |= (kept.sum(axis=-1) >= LEAST_ITERATIONS).any(axis=1).all(axis=-1)
        above = measured.log_ratios(going[used], look, alike(kept))
        below = above.copy()
        below[:, differ] = measured.log_ratios(going[used][differ], look, alike(under[used][differ] == state))
        samples.append((above - ignorable, must_catch - below))
    gap = np.maximum(
        widest, np.maximum(*(_metric_gaps(measured, look, going[used], own[used]) for own in (over, under)))
    )
    over_them, under_them = (_with_mean(np.stack(own)) for own in zip(*samples, strict=True))
    here[:, used] = _rows(over_them, seen)
    apart = _apart(measured, look, going[used], over[used], gap)
    others = apart.copy()
    others[:, differ] = _apart(measured, look, going[used][differ], under[used][differ], gap[:, differ])
    some_apart = (~np.isnan(apart)).any(axis=(0, 2))
    slower_in_all = np.zeros((len(p), len(going)), bool)
    slower_in_all[:, used] = _slower_in_all(under_them[-1], must_catch - others) & some_apart
    slower_in_all[:, used] |= _slower_in_few(under_them[:-1], here[:-1, used])
    over_them = _with_apart(over_them, apart - ignorable, here[:, used])
    p_own, pairs = _tail(over_them, carried)
    q_own, known = _tail(under_them, carried)
    shown[:, used] = (pairs >= LEAST_PAIRS)[:, 0]
    most = np.concatenate([known[:-1], known[:-1].max(axis=0, keepdims=True)])
    passes = (most >= OWN_PAIRS) & (known[-1] >= FIRST_PASSING_PAIRS)
    p_in[..., used] = _weighted(p_own, np.where(pairs >= FIRST_BLOCKING_PAIRS, block, 0.0))
    q_in[..., used] = _weighted(q_own, np.where(passes, passing, 0.0))
    more, less, labelled = _discordant(over, has_over)
    p_share = np.where(more > 0, special.bdtrc(more - 1, np.maximum(more + less, 1), 0.5), 1.0)
    p_share = np.minimum(1.0, orders_bound(1) * p_share)
    placed = np.any([(over == state).sum(axis=-1) >= LEAST_ITERATIONS for state in STATES], axis=0)
    unplaced = (~placed).any(axis=(1, 2)) & has_over
    leans = (p_share <= LEANS) | unplaced
    return _Look(p, q, p_in, q_in, here, shown, used, slower_in_all, _weighted(p_share, block), leans, more, labelled)


def _apart(measured: Measured, look: int, chosen: Integers, over: NDArray[np.int8], gap: Floats) -> Floats:
    """Log ratios of pairs without a common state less what the states may add, (gates, chosen, pairs)."""
    slow, fast = (measured.logs(chosen, look, alike(over == state)) for state in STATES)
    none = np.isnan(np.diff(slow)).all(axis=-1) & np.isnan(np.diff(fast)).all(axis=-1)
    raised, lowered = slow[..., 1] - fast[..., 0] - AT_MOST * gap[..., None], fast[..., 1] - slow[..., 0]
    return np.where(none, np.where(np.isnan(raised), lowered, raised), np.nan)


def _with_apart(states: Floats, apart: Floats, rows: Bools) -> Floats:
    """The last row of each run with the pairs without a common state, where its own are too few to block.

    Args:
        states: What pairs exceed ``ignorable`` by, (states and mean, gates, runs, pairs).
        apart: The same of pairs without a common state, (gates, runs, pairs).
        rows: Which of them are compared, (states and mean, runs).
    """
    last = rows.copy()
    last[:-1] &= ~rows[-1]
    few = (~np.isnan(states)).sum(axis=-1, keepdims=True) < FIRST_BLOCKING_PAIRS
    return np.where(last[:, None, :, None] & few & np.isnan(states), apart, states)


def _rows(states: Floats, seen: Bools) -> Bools:
    """What is compared, (states and their mean, runs): see :func:`perfgate.judge.state_series.by_state`.

    Args:
        states: What pairs have of each state and of their mean, (states and mean, gates, runs, pairs).
        seen: Runs of which both sides have some state.
    """
    pairs = (~np.isnan(states[:-1, 0])).sum(axis=-1)
    alone = (pairs > 0).sum(axis=0) == 1
    rows = np.where(alone, pairs > 0, pairs >= OWN_PAIRS)
    return np.concatenate([rows, ~alone[None]]) & seen


def _slower_in_all(common: Floats, others: Floats) -> Bools:
    """Of which gates and runs all pairs exceed ``must_catch`` in the mean, those without a common state included.

    Args:
        common: What pairs are short of it by, (gates, runs, pairs); not a number where one has no common state.
        others: The same of these.
    """
    found: Bools = _moments(np.where(np.isnan(common), others, common))[1] < 0
    return found


def _slower_in_few(states: Floats, rows: Bools) -> Bools:
    """The same of the pairs of a state that has too few for a row of its own."""
    pairs, mean, _ = _moments(states)
    return np.asarray(((pairs > 0) & (mean < 0) & ~rows[:, None]).any(axis=0))


def _metric_gaps(measured: Measured, look: int, chosen: Integers, labels: NDArray[np.int8]) -> Floats:
    """How much worse each gate's metric may be in the slow state, of the side where that is more, (gates, chosen)."""
    groups = (measured.logs(chosen, look, alike(labels == state)).swapaxes(-1, -2) for state in STATES)
    (slow, slow_mean, slow_squares), (fast, fast_mean, fast_squares) = map(_moments, groups)
    df = (np.maximum(slow - 1, 0) + np.maximum(fast - 1, 0)).sum(axis=-1, keepdims=True)
    variance = (slow_squares + fast_squares).sum(axis=-1, keepdims=True) / np.maximum(df, 1)
    error = np.sqrt(variance * (1 / np.maximum(slow, 1) + 1 / np.maximum(fast, 1)))
    gaps = slow_mean - fast_mean - special.stdtrit(np.maximum(df, 1), GAP_LEVEL) * error
    widest: Floats = np.where((slow > 0) & (fast > 0), gaps, 0.0).max(axis=-1)
    return np.maximum(widest, 0.0)


def _with_mean(states: Floats) -> Floats:
    """What is there of each state, and behind it the mean over those of a pair."""
    known = ~np.isnan(states)
    total = np.where(known, states, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.concatenate([states, np.where(known.any(axis=0), total, np.nan)[None]])


def _discordant(labels: NDArray[np.int8], some: Bools) -> tuple[Integers, ...]:
    """Pairs whose head was slow for a larger share, for a smaller one, and pairs with a label on both sides."""
    known = (labels != two_states.CUT).sum(axis=-1)
    share = (labels == two_states.SLOW).sum(axis=-1) / np.maximum(known, 1)
    whole = (known > 0).all(axis=-1) & some[:, None]
    rows = ((share[..., 1] > share[..., 0]) & whole, (share[..., 1] < share[..., 0]) & whole, whole)
    return tuple(row.sum(axis=1) for row in rows)


def _keep_smaller(look: _Look, old: _Look) -> None:
    """The running p and q: the smallest until now."""
    for name in ("p", "q", "p_in", "q_in", "p_share"):
        setattr(look, name, np.minimum(getattr(look, name), getattr(old, name)))


def _chosen(look: _Look, on: Bools | Integers) -> _Look:
    return _Look(**{name: value[..., on] for name, value in vars(look).items()})


def _verdicts(look: _Look) -> tuple[NDArray[np.int8], NDArray[np.int8], Bools]:
    """Verdicts of the runs and of their first gates, and whether the share blocked.

    The family of a run, a column each: its gates as they are or, where states are used, in each state that both sides
    have and in their mean, or with nothing to compare; and the share.
    """
    gates, runs = look.p.shape
    nothing = look.used & ~look.here.any(axis=0)
    here = np.stack([~look.used | nothing, *look.here & look.used])
    shown = look.shown[:, None]
    p = np.stack([np.where(nothing, 1.0, look.p), *np.where(shown, look.p_in, 1.0)])
    q = np.stack([np.where(nothing, 1.0, look.q), *np.where(shown, look.q_in, 1.0)])
    q[-1] = np.where(look.slower_in_all, 1.0, q[-1])
    here = np.repeat(here[:, None], gates, axis=1).reshape(-1, runs)
    here = np.concatenate([here, look.used[None]])
    p = np.concatenate([p.reshape(-1, runs), look.p_share[None]])
    passes = np.concatenate([q.reshape(-1, runs) <= BETA, ~look.leans[None]])
    rejected = _holm(np.where(here, p, np.inf), here.sum(axis=0))
    verdicts = np.where(rejected, REGRESSED, np.where(passes, PASS, INCONCLUSIVE))
    return _worst(verdicts, here), _worst(verdicts[:-1:gates], here[:-1:gates]), rejected[-1]


def _worst(verdicts: Integers, here: Bools) -> NDArray[np.int8]:
    """The worst of the columns that are there."""
    blocked = (here & (verdicts == REGRESSED)).any(axis=0)
    passed = (~here | (verdicts == PASS)).all(axis=0)
    return np.where(blocked, REGRESSED, np.where(passed, PASS, INCONCLUSIVE)).astype(np.int8)


def _holm(p: Floats, members: Integers) -> Bools:
    """Which members Holm's procedure rejects, (columns, runs); columns that are not there have an infinite p."""
    order = np.argsort(p, axis=0, kind="stable")
    levels = ALPHA / np.maximum(members - np.arange(len(p))[:, None], 1)
    in_order = np.logical_and.accumulate(np.take_along_axis(p, order, axis=0) <= levels, axis=0)
    rejected = np.empty_like(in_order)
    np.put_along_axis(rejected, order, in_order, axis=0)
    return rejected


def _tail(x: Floats, carried: float) -> tuple[Floats, Integers]:
    """One-sided p that the mean of the numbers on the last axis is above 0, and how many they are; 1 below two.

    A variance is added that no number of pairs makes smaller; the degrees of freedom stay those of the pairs.
    """
    pairs, mean, squares = _moments(x)
    many = np.maximum(pairs, LEAST_PAIRS)
    error = np.sqrt(squares / (many - 1) / many + carried)
    return np.where(pairs >= LEAST_PAIRS, special.stdtr(many - 1, _over(-mean, error)), 1.0), pairs


def _moments(x: Floats) -> tuple[Integers, Floats, Floats]:
    """How many numbers are on the last axis, their mean, and the sum of squares about it."""
    known = ~np.isnan(x)
    pairs = known.sum(axis=-1)
    mean = np.where(known, x, 0.0).sum(axis=-1) / np.maximum(pairs, 1)
    return pairs, mean, np.where(known, (x - mean[..., None]) ** 2, 0.0).sum(axis=-1)


def _over(distance: Floats, error: Floats) -> Floats:
    return np.divide(distance, error, out=np.zeros_like(distance), where=error > 0)


def _weighted(p: Floats, weight: float | Floats) -> Floats:
    return np.where(np.asarray(weight) > 0, np.minimum(1.0, p / np.where(np.asarray(weight) > 0, weight, 1.0)), 1.0)


# --- by the project itself


def plans(margins: Margins, gates: int, draw_sd: float = 0.0) -> list[GatePlan]:
    """The gates as they are declared."""
    words = f"{margins.ignorable * 100:.10g}%:{margins.must_catch * 100:.10g}%"
    plain = [parse_gate(f"{metric}:{words}") for metric in METRICS[:gates]]
    with_draws = (plan.gate.model_copy(update={"draw_sd": draw_sd}) for plan in plain)
    return [plan.model_copy(update={"gate": gate}) for plan, gate in zip(plain, with_draws, strict=True)]


def decide_one(measured: Measured, taken: Sequence[tuple[Trial, Trial]], gates: int) -> tuple[int, int, int]:
    """Decide a run by the project's own functions: its verdict, its pairs, and whether the share blocked it."""
    before, taken = taken[:1], taken[1:]
    for look in LOOKS:
        pairs = taken[:look]
        gpus, qualified = (["simulated"], ("simulated",)) if measured.source == "probe" else ([], ())
        labeller = Labeller(pairs, gpus, qualified, before)
        series = [
            Series(plan, _values(plan, pairs, 0), _values(plan, pairs, 1), SCHEDULE)
            for plan in plans(measured.margins, gates, measured.carried)
        ]
        split = [own for one in series for own in by_state(one, labeller)]
        decisions = decide([*split, *slow_share(split, labeller, SCHEDULE, drawn=True)], ALPHA, BETA)
        verdict = run_verdict([decision.verdict for decision in decisions])
        if verdict != "inconclusive":
            break
    shares = [decision.rejected for decision in decisions if isinstance(decision.series, SlowShare)]
    return CODES[verdict], look, int(any(shares))


def _values(plan: GatePlan, pairs: Sequence[tuple[Trial, Trial]], side: int) -> tuple[float, ...]:
    return tuple(plan.gate.measured.summarise(pair[side]) or 0.0 for pair in pairs)


def _trial(measured: Measured, run: int, pair: int, side: int) -> Trial:
    sides: tuple[Side, Side] = ("base", "head")
    rows = []
    for iteration in range(ITERATIONS):
        place = (run, max(pair, 0), side, iteration)  # of the warm-up trials only the probe is looked at
        early, late = (int(mark) for mark in measured.steps[place])
        before, after = (int(reading) for reading in measured.probes[run, 1 + pair, side, iteration])
        e2e, tpot = (int(values[place]) for values in _padded(measured.values[1:]))
        rows.append(Iteration(
            ttft_ns=(e2e - tpot,), e2e_ns=(e2e,), itl_ns=(early, early, late, late), output_tokens=2, elapsed_ns=e2e,
            tokens_digest="", begin_ns=0, probe_ns=Probes((before,), (after,)),
        ))  # fmt: skip
    return Trial(index=2 * (1 + pair) + side, pair=None if pair < 0 else pair, position=side, subject=sides[side],
                 visit=0, t0_utc="", duration_ns=1, iterations=tuple(rows))  # fmt: skip


def _padded(values: Floats) -> list[Floats]:
    """Values of the second and third gate, also where there are fewer."""
    return [*values, *[np.full(values.shape[1:], 2.0)] * 2][:2]


def disagreements(measured: Measured, gates: Sequence[int]) -> int:
    """How many runs, each decided by some numbers of gates, the twin ends differently from the project's functions."""
    runs = len(measured.steps)
    taken = [
        [(_trial(measured, run, pair, 0), _trial(measured, run, pair, 1)) for pair in range(-1, PAIRS)]
        for run in range(runs)
    ]
    found = 0
    for many in gates:
        ends = decide_all(measured, many)
        twin = zip(ends.runs.tolist(), ends.pairs.tolist(), ends.by_share.tolist(), strict=True)
        found += sum(own != decide_one(measured, taken[run], many) for run, own in enumerate(twin))
    return found
