"""Decision rules of other tools, each written anew from its description, for many comparisons at once.

A side is an array (comparisons, processes, iterations) of times, larger is worse; what comes back is one code a
comparison: ``REGRESSED`` where the tool reports a slowdown, ``PASS`` where it reports none, ``INCONCLUSIVE`` where it
has a word for not knowing. Only slowdowns are reported here; most of these rules report speed-ups too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from perfgate import scipy_special as special
from perfgate.drill.recordings import STEP
from perfgate.drill.replay import ErrorKind, Replay, Share, Truth
from perfgate.models import Frozen
from perfgate.stats.estimate import Floats
from perfgate.stats.sequential import INCONCLUSIVE, PASS, REGRESSED

Codes = NDArray[np.int8]
Decide = Callable[[Floats, Floats, np.random.Generator], Codes]

RESAMPLED = 200  # draws of a replay for rules that resample themselves
KEPT = 20  # iterations of a process, where a tool does not ask for another number
U_ALPHA = 0.05  # of benchstat and of google/benchmark's U test
U_EXACT = 20
ASV_ALPHA = 0.002
CRITERION_ALPHA, CRITERION_NOISE, CRITERION_CONFIDENCE = 0.05, 0.01, 0.95
CRITERION_RESAMPLES = 1000  # the tool takes 100,000; a thousand settle 5 % well enough here
NVBENCH_GAP, NVBENCH_CENTRE, NVBENCH_OVERLAP, NVBENCH_DISPERSION = 0.005, 0.005, 0.5, 0.02
ROLLING_DAYS = 3
LOW_PERCENTILE = 5


def codes(regressed: NDArray[np.bool_]) -> Codes:
    """Blocked or passed, for a rule that knows no third word."""
    return np.where(regressed, REGRESSED, PASS).astype(np.int8)


def summaries(side: Floats) -> Floats:
    """One value a process: the median of its iterations, (comparisons, processes)."""
    medians: Floats = np.median(side, axis=-1)
    return medians


def pooled(side: Floats) -> Floats:
    """All iterations of all processes as if they were one sample, (comparisons, values)."""
    return side.reshape(len(side), -1)


def flat_threshold(base: Floats, head: Floats, threshold: float) -> Codes:
    """One run against one run: slower by more than a fixed share."""
    return codes(summaries(head)[:, 0] > summaries(base)[:, 0] * (1 + threshold))


def u_test(base: Floats, head: Floats, alpha: float = U_ALPHA) -> Codes:
    """Two-sided Mann-Whitney U on the samples given, (comparisons, values); the direction is that of the medians."""
    return codes((u_p(base, head) <= alpha) & (np.median(head, axis=-1) > np.median(base, axis=-1)))


def u_p(base: Floats, head: Floats) -> Floats:
    """Two-sided p of the U test: exact up to 20 samples a side, normal beyond."""
    method: Literal["exact", "asymptotic"] = "exact" if max(base.shape[-1], head.shape[-1]) <= U_EXACT else "asymptotic"
    return np.asarray(scipy_stats.mannwhitneyu(base, head, alternative="two-sided", axis=-1, method=method).pvalue)


def asv_continuous(base: Floats, head: Floats, factor: float) -> Codes:
    """Slower by a factor, and different by the U test at 0.002 or, with too few samples for it, by disjoint intervals.

    With too few samples asv's interval of the median reaches over all of them at least; here it is exactly their
    range, which blocks rather too often than too seldom.
    """
    a, b = pooled(base), pooled(head)
    smallest = 1 / special.comb(a.shape[1] + b.shape[1], min(a.shape[1], b.shape[1]))
    if smallest < ASV_ALPHA:
        different = u_p(a, b) < ASV_ALPHA
    else:
        different = (a.max(axis=-1) < b.min(axis=-1)) | (b.max(axis=-1) < a.min(axis=-1))
    return codes(different & (np.median(b, axis=-1) > factor * np.median(a, axis=-1)))


def criterion(base: Floats, head: Floats, rng: np.random.Generator) -> Codes:
    """Bootstrapped t test of two processes' samples, and the mean's change beyond the noise threshold."""
    return codes(np.array([_criterion_regressed(a, b, rng) for a, b in zip(pooled(base), pooled(head), strict=True)]))


def _criterion_regressed(base: Floats, head: Floats, rng: np.random.Generator) -> bool:
    a, b = (_resampled(side, len(side), rng) for side in (base, head))
    change = b.mean(axis=1) / a.mean(axis=1) - 1
    if np.percentile(change, 50 * (1 - CRITERION_CONFIDENCE)) <= CRITERION_NOISE:
        return False
    both = np.concatenate([base, head])
    null = _welch(_resampled(both, len(head), rng), _resampled(both, len(base), rng))
    below = int((null < _welch(head[None], base[None])).sum())
    return 2 * min(below, CRITERION_RESAMPLES - below) / CRITERION_RESAMPLES < CRITERION_ALPHA


def _resampled(values: Floats, size: int, rng: np.random.Generator) -> Floats:
    return values[rng.integers(0, len(values), (CRITERION_RESAMPLES, size))]


def _welch(head: Floats, base: Floats) -> Floats:
    spread = head.var(axis=1, ddof=1) / head.shape[1] + base.var(axis=1, ddof=1) / base.shape[1]
    t: Floats = (head.mean(axis=1) - base.mean(axis=1)) / np.sqrt(spread)
    return t


def nvbench_robust(base: Floats, head: Floats) -> Codes:
    """Intervals from minimum to third quartile: a clear gap is slow, much overlap the same, else ambiguous.

    Times are cycles here too, as on a clock that does not move, so the rule's second look at cycles changes nothing.
    """
    a, b = pooled(base), pooled(head)
    (a_low, a_q1, a_centre, a_high), (b_low, b_q1, b_centre, b_high) = _quartiles(a), _quartiles(b)
    slow = (b_low > a_high) & ((b_low - a_high) / a_high >= NVBENCH_GAP)
    fast = (b_high < a_low) & ((a_low - b_high) / b_high >= NVBENCH_GAP)
    shared = np.minimum(a_high, b_high) - np.maximum(a_low, b_low)
    same = (
        (np.maximum((a_high - a_q1) / a_centre, (b_high - b_q1) / b_centre) <= NVBENCH_DISPERSION)
        & (np.abs(a_centre - b_centre) / np.minimum(a_centre, b_centre) <= NVBENCH_CENTRE)
        & (shared >= NVBENCH_OVERLAP * np.minimum(a_high - a_low, b_high - b_low))
    )
    return np.where(slow, REGRESSED, np.where(fast | same, PASS, INCONCLUSIVE)).astype(np.int8)


def _quartiles(x: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    low, q1, centre, q3 = np.percentile(x, [0, 25, 50, 75], axis=-1)
    return low, q1, centre, q3


def bencher_t(history: Floats, head: Floats, boundary: float) -> Codes:
    """A new value above Student's t prediction interval of the stored ones, whose sd divides by n as in the tool."""
    stored, new = summaries(history), summaries(head)[:, 0]
    n = stored.shape[1]
    return codes(new > stored.mean(axis=1) + prediction_half_width(stored.std(axis=1), n, boundary))


def prediction_half_width(sd: Floats, n: int, boundary: float) -> Floats:
    """From the mean of ``n`` stored values to the boundary for one more."""
    width: Floats = sd * special.stdtrit(n - 1, boundary) * np.sqrt(1 + 1 / n)
    return width


def tensorrt_llm(history: Floats, head: Floats, threshold: float) -> Codes:
    """A new latency above the 5th percentile of the trailing three-day means of the stored days by a fixed share.

    The new value counts as the last day, as in the tool.
    """
    new = summaries(head)[:, :1]
    return codes(new[:, 0] > rolling_baseline(np.concatenate([summaries(history), new], axis=1)) * (1 + threshold))


def rolling_baseline(daily: Floats) -> Floats:
    """5th percentile of trailing means over three days, the first two over what there is, (comparisons, days)."""
    total = np.cumsum(np.pad(daily, ((0, 0), (1, 0))), axis=1)
    last = np.arange(1, daily.shape[1] + 1)
    first = np.maximum(last - ROLLING_DAYS, 0)
    baseline: Floats = np.percentile((total[:, last] - total[:, first]) / (last - first), LOW_PERCENTILE, axis=1)
    return baseline


# --- the rules by name


@dataclass(frozen=True)
class PeerRule:
    """A rule and the measurement it is given."""

    name: str  # for tables
    source: str  # `owner/repo:path` of its description
    plan: str  # what is measured, in words
    decide: Decide  # takes base, head and a generator
    base: int = 1  # processes of the base
    head: int = 1  # processes of the head
    iterations: int = KEPT  # kept in each process
    pools: bool = False  # it looks at single iterations, not at one value a process
    stored: bool = False  # the base was measured earlier, each process on a visit of its own
    resamples: bool = False  # it takes milliseconds a comparison

    @property
    def starts(self) -> int:
        """Engine starts of a comparison, stored ones not counted."""
        return self.head if self.stored else self.base + self.head


PERF_EVAL = "vllm-project/perf-eval:lib/compare_via_api.py"
SGLANG = "sgl-project/sglang:sgl-kernel/benchmark/kernel_bench_regression/README.md"
PYTEST = "ionelmc/pytest-benchmark:src/pytest_benchmark/utils.py"
UTEST = "google/benchmark:tools/gbench/report.py"
ASV = "airspeed-velocity/asv:asv/_stats.py"
TRT = "NVIDIA/TensorRT-LLM:tests/integration/defs/perf/README_perf_regression_system.md"
BENCHER = "bencherdev/bencher:services/console/src/chunks/docs-explanation/thresholds/en/test/t-test.mdx"
PEERS = (
    PeerRule("flat 2 %, stored run", PERF_EVAL, "one run against one of another visit",
             lambda base, head, _: flat_threshold(base, head, 0.02), stored=True),
    PeerRule("flat 5 %, stored run", SGLANG, "one run against one of another visit",
             lambda base, head, _: flat_threshold(base, head, 0.05), stored=True),
    PeerRule("flat 2 %", PYTEST, "one run a side, same visit", lambda base, head, _: flat_threshold(base, head, 0.02)),
    PeerRule("flat 5 %", PYTEST, "one run a side, same visit", lambda base, head, _: flat_threshold(base, head, 0.05)),
    PeerRule("Mann-Whitney, one process", UTEST, "20 iterations of one process a side",
             lambda base, head, _: u_test(pooled(base), pooled(head)), pools=True),
    PeerRule("Mann-Whitney, pooled", "psf/pyperf:pyperf/_compare.py", "20 iterations of four processes a side, pooled "
             "as there (there a t test)", lambda base, head, _: u_test(pooled(base), pooled(head)), 4, 4, pools=True),
    PeerRule("benchstat", "golang/perf:benchmath/anone.go", "one value of ten processes a side",
             lambda base, head, _: u_test(summaries(base), summaries(head)), 10, 10),
    PeerRule("asv continuous", ASV, "two processes a side, five samples each, factor 1.1",
             lambda base, head, _: asv_continuous(base, head, 1.1), 2, 2, 5, pools=True),
    PeerRule("asv continuous -f 1.01", ASV, "the same with factor 1.01",
             lambda base, head, _: asv_continuous(base, head, 1.01), 2, 2, 5, pools=True),
    PeerRule("criterion", "criterion-rs/criterion.rs:src/analysis/compare.rs", "100 samples of one process a side",
             criterion, 1, 1, 100, pools=True, resamples=True),
    PeerRule("nvbench-compare-robust", "NVIDIA/nvbench:docs/nvbench_compare_robust.md",
             "20 samples of one process a side", lambda base, head, _: nvbench_robust(base, head), pools=True),
    PeerRule("Bencher t_test 0.99", BENCHER, "one run against 64 stored ones, each of its own visit",
             lambda base, head, _: bencher_t(base, head, 0.99), 64, stored=True),
    PeerRule("TensorRT-LLM 10 %", TRT, "one run against 90 stored days, each a visit; before a merge",
             lambda base, head, _: tensorrt_llm(base, head, 0.1), 90, stored=True),
    PeerRule("TensorRT-LLM 5 %", TRT, "the same after a merge",
             lambda base, head, _: tensorrt_llm(base, head, 0.05), 90, stored=True),
)  # fmt: skip

# --- the rules on the draws of a replay


class PeerCase(Frozen):
    """What a rule made of one slowdown of the decode step."""

    size: float  # a ratio minus one
    error: ErrorKind  # whether such a slowdown must not be blocked, or must not pass
    blocked: Share  # draws it calls slower
    passed: Share  # draws it calls not slower; what is left it cannot tell
    starts: float  # engine starts of a comparison on average; what was stored before counts as none

    @property
    def wrong(self) -> Share:
        """False alarms of a slowdown that must not be blocked, misses of one that must not pass."""
        return self.blocked if self.error == "false-blocks" else self.passed


class PeerRow(Frozen):
    """One rule."""

    rule: str
    given: str  # what it is given, in words
    source: str = ""  # where it is described; empty for ours
    cases: tuple[PeerCase, ...] = ()  # a slowdown each; none where the recordings do not have what it is given


def peers(replay: Replay, rules: Sequence[PeerRule] = PEERS, seed: int = 0) -> tuple[PeerRow, ...]:
    """Apply rules to the draws of a replay, ours last, by all gates of its scenario.

    Each decides on the decode step without a slowdown, with ``ignorable`` and ``must_catch`` of the gate, and with four
    times that. A rule that asks for more trials or iterations than there are gets what there is. The stored runs of a
    rule are trials of the other visits to the same kind of machine, drawn with replacement.

    Args:
        replay: The draws; its scenario gates the decode step.
        rules: Those of other gates.
        seed: Draws what is stored, and what rules resample.
    """
    ignorable, must_catch = replay.margins[STEP]
    sizes: dict[float, ErrorKind] = {
        0.0: "false-blocks", ignorable: "false-blocks", must_catch: "false-passes", 4 * must_catch: "false-passes",
    }  # fmt: skip
    pool, drawn = replay.pool, replay.drawn
    base, head = pool.sides(STEP, drawn)
    iterations = pool.iterations(drawn)
    base, head = iterations or (base[..., None], head[..., None])
    rows = []
    for number, rule in enumerate(rules):
        rng = np.random.default_rng([seed, number])
        stored = pool.elsewhere(rng, drawn, rule.base) if rule.stored and (iterations or not rule.pools) else None
        if (rule.pools and not iterations) or (rule.stored and stored is None):
            rows.append(PeerRow(rule=rule.name, given=rule.plan, source=rule.source))
            continue
        earlier = base if stored is None else pool.sides(STEP, stored)[0][..., None]
        draws = RESAMPLED if rule.resamples else len(head)
        rows.append(_row(rule, earlier[:draws, : rule.base, : rule.iterations],
                         head[:draws, : rule.head, : rule.iterations], sizes, rng))  # fmt: skip
    cases = []
    for size, error in sizes.items():
        row = replay.row(Truth(STEP, {STEP: size}, STEP))
        starts = 2 * (row.pairs + 1)  # each pair is two starts, and a warm-up trial a side comes before the first
        cases.append(PeerCase(size=size, error=error, blocked=row.regressed, passed=row.passed, starts=starts))
    looks = replay.declared.schedule.looks
    given = f"pairs in random order, {looks[0]} to {looks[-1]}"
    return (*rows, PeerRow(rule=f"perfgate, {replay.declared.name}", given=given, cases=tuple(cases)))


def _row(
    rule: PeerRule, base: Floats, head: Floats, sizes: Mapping[float, ErrorKind], rng: np.random.Generator
) -> PeerRow:
    recorded = head.shape[2]
    fewer = f"; {recorded} recorded" if rule.pools and recorded < rule.iterations else ""
    again = "; drawn from the other visits" if rule.stored and rule.base > 1 else ""
    starts = head.shape[1] + (0 if rule.stored else base.shape[1])
    cases = []
    for size, error in sizes.items():
        ends = rule.decide(base, head * (1 + size), rng)
        blocked, passed = (Share.counted(int((ends == code).sum()), len(ends)) for code in (REGRESSED, PASS))
        cases.append(PeerCase(size=size, error=error, blocked=blocked, passed=passed, starts=starts))
    return PeerRow(rule=rule.name, given=f"{rule.plan}{fewer}{again}", source=rule.source, cases=tuple(cases))
