"""How many iterations a trial gets, where a scenario leaves that open: as many as lead to a decision soonest.

More iterations make a trial longer and its value steadier, but nothing that restarts differ by goes away with them. So
there is a number that pays: Kalibera and Jones 2013 ("Rigorous benchmarking in reasonable time") find it from the
variance between restarts and within, and from what a restart and an iteration cost. Here looks are taken at a few
numbers of pairs, so each number of iterations is priced by when these looks would decide.

Known are an earlier run of the same cell, else the warm-up trials of this one. The variance is that of either side's
own iterations and of pairs about their mean, which is the same whichever side is slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

from perfgate import scipy_special as special
from perfgate.metrics.catalogue import COLD_START, Metric
from perfgate.metrics.trial import Trial, in_state, is_slow, readings_of
from perfgate.models import Frozen
from perfgate.scenario.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.stats import FIRST_PASSING_PAIRS
from perfgate.stats.estimate import ROUNDING, log_ratios, mean_estimate, power_at
from perfgate.units import NS_PER_S, percent

MEDIAN: Final = math.pi / 2
"""Variance of a median of normal values, over that of their mean (asymptotically)."""
MAD: Final = 1.4826
"""Standard deviation of normal values, over the median of their distances from their median."""
TRIED: Final = 40
"""Numbers of iterations that are priced, evenly spread by ratio."""
CAREFUL: Final = 0.25
"""Few pairs may have spread by less than others will: their variance is taken as its upper bound at this level."""
FEW: Final = 2
"""Fewer iterations or pairs than this have no spread."""


class IterationChoice(Frozen):
    """A number of iterations that was fixed before the first judged pair, for both sides.

    Args:
        iterations: Of each judged timed trial.
        reason: What it follows from, in words.
    """

    iterations: Annotated[int, Field(ge=1, le=10_000)]
    reason: Annotated[str, Field(max_length=1000)]


@dataclass(frozen=True)
class _Spread:
    """What the pairs of one gate spread by: variances of log ratios.

    Args:
        plan: The gate.
        restart: What restarts differ by.
        iteration: What one iteration a trial would add.
    """

    plan: GatePlan
    restart: float
    iteration: float

    def sd(self, iterations: int) -> float:
        """Of a pair whose trials have so many iterations."""
        return max(math.sqrt(self.restart + self.iteration / iterations), ROUNDING)


@dataclass(frozen=True)
class _Price:
    """Seconds that a trial takes without measured iterations, and that each of these adds.

    Args:
        restart_s: The former.
        iteration_s: The latter.
        expected: Whether the former is the scenario's own expectation.
    """

    restart_s: float
    iteration_s: float
    expected: bool = False


def choose_iterations(
    cell: Cell,
    warm_up: Sequence[Trial],
    pairs: Sequence[tuple[Trial, Trial]],
    source: str,
    gates_in_run: int,
    heads: int = 1,
) -> IterationChoice | None:
    """The number of iterations for the judged trials of a cell; ``None`` where it is declared, or nothing is known.

    Args:
        cell: The cell, with bounds in ``measure.choose``.
        warm_up: Valid warm-up trials of this run; they count where there are no pairs.
        pairs: Timed pairs of the newest earlier run of the same cell.
        source: Which that was, in words.
        gates_in_run: They share alpha.
        heads: In the run beside one base; each round has a trial of every build.
    """
    bounds = cell.measure.choose
    gates = [plan for plan in cell.gates if plan.gate.measured.kind == "timed"]
    if bounds is None or not gates:
        return None
    trials = [trial for pair in pairs for trial in pair] or list(warm_up)
    price = _price(trials)
    if price is not None and not pairs:
        price = _with_warm_caches(price, cell, trials)
    spreads = [spread for plan in gates if (spread := _spread(cell, plan, pairs, trials)) is not None]
    if price is None or len(spreads) < len(gates):
        return None
    declared = min(max(cell.measure.iterations, bounds.least), bounds.most)
    ratio = (bounds.most / bounds.least) ** (1 / (TRIED - 1))
    tried = sorted({declared, *(round(bounds.least * ratio**step) for step in range(TRIED))})
    seconds = {n: (1 + heads) * _seconds(cell, spreads, price, n, gates_in_run) for n in tried}
    best = min(tried, key=lambda n: (seconds[n], n))
    beside = {1: "", 2: ", beside another head"}.get(heads, f", beside {heads - 1} other heads")
    told_by = f"{beside}; by {source}" if pairs else f"{beside}; by the warm-up trials"
    return IterationChoice(iterations=best, reason=_reason(spreads, price, seconds, (best, declared)) + told_by)


def _price(trials: Sequence[Trial]) -> _Price | None:
    """What a restart and an iteration take; caches may have been cold in the first of them, so the cheapest counts."""
    timed = [(trial.duration_ns, [i.elapsed_ns for i in trial.iterations]) for trial in trials if trial.iterations]
    if not timed:
        return None
    iteration_ns = statistics.median(ns for _, elapsed in timed for ns in elapsed)
    restart_ns = min(duration - sum(elapsed) for duration, elapsed in timed)
    return _Price(max(restart_ns, 0) / NS_PER_S, iteration_ns / NS_PER_S)


def _with_warm_caches(price: _Price, cell: Cell, warm_up: Sequence[Trial]) -> _Price:
    """Judged trials start sooner than warm-up ones whose caches were all empty: as expected, if that is less."""
    expect = cell.measure.expect
    begins_cold = any(plan.gate.metric == COLD_START for plan in cell.gates)
    if expect is None or begins_cold or any(not trial.startup or trial.startup.cache_files for trial in warm_up):
        return price
    expected_s = max(expect.trial_s - cell.measure.iterations * price.iteration_s, 0.0)
    return replace(price, restart_s=expected_s, expected=True) if expected_s < price.restart_s else price


def _spread(
    cell: Cell, plan: GatePlan, pairs: Sequence[tuple[Trial, Trial]], trials: Sequence[Trial]
) -> _Spread | None:
    """What a gate's pairs spread by; ``None`` where trials have too few iterations, or no value of its metric.

    Where no pair tells what restarts differ by, it is what the scenario expects of pairs, at least half of it, else as
    much as the iterations add at their declared number.
    """
    metric = plan.gate.measured
    variance = _within(metric, trials)
    if variance is None:
        return None
    iteration = 2 * variance
    pair_values = metric.known_pairs(_alike(pairs))
    if len(pair_values) >= FEW:
        d = log_ratios([base for _, base, _ in pair_values], [head for *_, head in pair_values], metric.sign)
        error = float(mean_estimate(d, max(map(metric.resolution, trials))).standard_error)
        seen = len(pair_values) * error**2
        seen *= (len(pair_values) - 1) / float(special.chdtri(len(pair_values) - 1, 1 - CAREFUL))
        # Disturbances that come at regular times cancel in part: trials then spread by less than single iterations say.
        if len(pair_values) >= FIRST_PASSING_PAIRS:  # fewer may have met by chance
            iteration = min(iteration, seen * len(trials[0].iterations))
        return _Spread(plan, max(seen - iteration / len(trials[0].iterations), 0.0), iteration)
    expected = cell.measure.expect.sd_of(metric) if cell.measure.expect else None
    left = iteration / cell.measure.iterations
    return _Spread(plan, left if expected is None else max(expected**2 - left, expected**2 / 2), iteration)


def _within(metric: Metric, trials: Sequence[Trial]) -> float | None:
    """What a single iteration would add to the variance of a trial's logarithm, each in its own trial and state.

    Where a trial's value is a median of iterations, by the median of their distances from theirs: a few that were
    disturbed move neither. Where it is a mean, by the mean of squares, as each of them moves it.
    """
    distances: list[float] = []
    lost = 0
    for trial in trials:
        groups = [logs for part in _by_state(trial) if len(logs := _logs(metric, part)) >= FEW]
        if not groups:
            return None
        for logs in groups:
            middle = statistics.fmean(logs) if metric.averages else statistics.median(logs)
            distances += [abs(value - middle) for value in logs]
        lost += len(groups)
    if not distances:
        return None
    left = len(distances) / (len(distances) - lost)
    if metric.averages:
        return left * statistics.fmean(distance**2 for distance in distances)
    return MEDIAN * left * (MAD * statistics.median(distances)) ** 2


def _logs(metric: Metric, trial: Trial) -> list[float]:
    """The metric's logarithm of each iteration that has one."""
    alone = (metric.summarise(trial.model_copy(update={"iterations": (i,)})) for i in trial.iterations)
    return [math.log(value) for value in alone if value is not None and value > 0]


def _by_state(trial: Trial) -> list[Trial]:
    """The trial once for each state of the GPU that it was in, with the iterations taken wholly in it.

    As it is where nothing was read, or no state has enough of them. What states differ by no iteration takes away: a
    warm-up trial that jumped showed 1.8 % by an iteration in place of 0.1 %, and 20 iterations were chosen, not 8.
    """
    fastest = _fastest([trial])
    if not fastest:
        return [trial]
    states = [in_state(trial, fastest, slow=slow) for slow in (False, True)]
    return [trial.model_copy(update={"iterations": group}) for group in states if len(group) >= FEW] or [trial]


def _alike(pairs: Sequence[tuple[Trial, Trial]]) -> list[tuple[Trial, Trial]]:
    """The pairs whose trials were both in one state of the GPU for most of their time; all where nothing was read.

    Each build by its own shortest readings, because one can move the probe as well.
    """
    fastest = [_fastest([pair[n] for pair in pairs]) for n in range(2)]
    states = [[_mostly_slow(trial, shortest) for trial, shortest in zip(pair, fastest, strict=True)] for pair in pairs]
    return [pair for pair, (base, head) in zip(pairs, states, strict=True) if base == head or not all(fastest)]


def _mostly_slow(trial: Trial, fastest: Sequence[int]) -> bool:
    read = [is_slow(reading, fastest) for iteration in trial.iterations for reading in readings_of(iteration)]
    return 2 * sum(read) > len(read)


def _fastest(trials: Sequence[Trial]) -> tuple[int, ...]:
    """The shortest reading on each rank; empty where an iteration has none, or others of other ranks."""
    readings = [
        reading for trial in trials for iteration in trial.iterations for reading in readings_of(iteration) or ((0,),)
    ]
    if len({len(reading) for reading in readings}) != 1 or not all(map(all, readings)):
        return ()
    return tuple(map(min, zip(*readings, strict=True)))


def _seconds(cell: Cell, spreads: Sequence[_Spread], price: _Price, iterations: int, gates_in_run: int) -> float:
    """Mean time of a build to a decision: half are of unchanged builds, half of a slowdown that one gate must catch.

    A run that its last look leaves open is followed by another, until one decides.
    """
    schedule = cell.schedule("timed")
    trial_s = price.restart_s + iterations * price.iteration_s
    until = [pairs * trial_s for pairs in schedule.looks]
    passed, blocked = [], []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        chances = []
        for spread in spreads:
            gate = spread.plan.gate
            error = math.sqrt(spread.sd(iterations) ** 2 / pairs + gate.drawn)
            low, high = math.log1p(gate.ignorable), math.log1p(gate.must_catch)
            chances.append(_chance(high / error, BETA * passing, pairs))
            blocked.append((pairs, _chance((high - low) / error, ALPHA * block / gates_in_run, pairs)))
        passed.append(math.prod(chances))
    caught = [statistics.fmean(chance for at, chance in blocked if at == pairs) for pairs in schedule.looks]
    return (_mean_time(passed, until) + _mean_time(caught, until)) / 2


def _mean_time(chances: Sequence[float], until: Sequence[float]) -> float:
    """The mean of the times until looks, each with the chance that it decides and none before it did, a decision."""
    decided, mean = 0.0, 0.0
    for chance, seconds in zip(chances, until, strict=True):
        mean += max(chance - decided, 0.0) * seconds
        decided = max(decided, chance)
    return (mean + (1 - decided) * until[-1]) / max(decided, 1e-9)


def _chance(shift: float, level: float, pairs: int) -> float:
    # Beyond these shifts it is 0 or 1, and the noncentral t no number.
    return power_at(min(max(shift, -10.0), 30.0), level, pairs - 1) if level > 0 else 0.0


def _reason(
    spreads: Sequence[_Spread],
    price: _Price,
    seconds: Mapping[int, float],
    numbers: tuple[int, int],
) -> str:
    """The gate that is hardest to decide, what it spreads by, the prices, and what the choice saves."""
    best, declared = numbers
    hardest = max(spreads, key=lambda spread: spread.sd(best) / math.log1p(spread.plan.gate.must_catch))
    restarts, iteration = (percent(math.sqrt(variance)) for variance in (hardest.restart, hardest.iteration))
    takes = "is expected to take" if price.expected else "takes"
    saved = f", {seconds[declared] / 60:.1f} with {declared}" if declared != best else ""
    return (
        f"pairs of {hardest.plan.gate.measured.name} spread by {restarts} between restarts "
        f"and {iteration} by an iteration; "
        f"a restart {takes} {price.restart_s:.1f} s, an iteration {price.iteration_s:.2f} s; "
        f"{seconds[best] / 60:.1f} minutes to a decision{saved}"
    )
