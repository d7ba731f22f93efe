"""Decide the same restarts by the rules of other tools and by ours: writes docs/other-rules.md.

``python benchmarks/other_rules.py`` takes about five minutes on one core. The rules are in ``foreign_rules.py``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import foreign_rules as rules
import numpy as np
from foreign_rules import Codes, Floats
from recorded_restarts import Recording, recordings
from rule_twin import INCONCLUSIVE, PASS, REGRESSED, Margins, decide_all

from perfgate.stats.sequential import DEFAULT_SCHEDULE, Schedule

ROOT = Path(__file__).parents[1]
SEED = 20261120
RUNS = 4000
SLOW_RUNS = 1000
"""For rules that bootstrap."""
BATCH = 250
TRUTHS = (0.0, 0.001, 0.005, 0.02)
WIDE, TIGHT = Margins(0.001, 0.005), Margins(0.0002, 0.0015)

TRIAL_S, ITERATION_S, KEPT = 30.0, 0.7, 20
"""Measured on an H200: a trial with its 2 + 20 iterations, and one further iteration."""
ITERATION_SD, RESTART_SD, VISIT_SD = 0.0016, 0.0003, 0.012
"""H200: between iterations of a trial, between the restarts of a pair (tests/fixtures/h200-llama-8b-iterations.csv:
pairs spread by 0.05 to 0.10 %), between visits (base steps of 5.356, 5.281 and 5.226 ms on three)."""
MODE_GAP = 0.002
"""Between the modes of restarts on the noisier visit."""

Decide = Callable[[Floats, Floats, np.random.Generator], Codes]


@dataclass(frozen=True)
class Rule:
    """A rule and the measurement it is given.

    Args:
        name: For the tables.
        source: ``owner/repo:path`` of its description; empty for ours.
        plan: What is measured, in words.
        decide: Takes base, head and a generator.
        base: Processes of the base.
        head: Processes of the head.
        iterations: Kept in each process.
        pools: It looks at single iterations, not at one value a process.
        stored: The base was measured earlier, each process on a visit of its own.
        margins: Ours: the gate's margins.
        runs: Simulated comparisons.
    """

    name: str
    source: str
    plan: str
    decide: Decide | None = None
    base: int = 1
    head: int = 1
    iterations: int = KEPT
    pools: bool = False
    stored: bool = False
    margins: Margins | None = None
    runs: int = RUNS

    @property
    def minutes(self) -> float:
        """GPU-minutes of one comparison, stored runs not counted."""
        processes = self.head if self.stored else self.base + self.head
        return processes * (TRIAL_S + max(0, self.iterations - KEPT) * ITERATION_S) / 60


def flat(threshold: float) -> Decide:
    """A flat threshold on one run a side."""
    return lambda base, head, _: rules.flat_threshold(base, head, threshold)


def pooled_u(base: Floats, head: Floats, _: np.random.Generator) -> Codes:
    """The U test on all iterations."""
    return rules.u_test(rules.pooled(base), rules.pooled(head))


def restarts_u(base: Floats, head: Floats, _: np.random.Generator) -> Codes:
    """The U test on one value a process."""
    return rules.u_test(rules.summaries(base), rules.summaries(head))


def asv(factor: float) -> Decide:
    """The rule of ``asv continuous``."""
    return lambda base, head, _: rules.asv_continuous(base, head, factor)


PERF_EVAL = "vllm-project/perf-eval:lib/compare_via_api.py"
SGLANG = "sgl-project/sglang:sgl-kernel/benchmark/kernel_bench_regression/README.md"
PYTEST = "ionelmc/pytest-benchmark:src/pytest_benchmark/utils.py"
UTEST = "google/benchmark:tools/gbench/report.py"
ASV = "airspeed-velocity/asv:asv/_stats.py"
TRT = "NVIDIA/TensorRT-LLM:tests/integration/defs/perf/README_perf_regression_system.md"
BENCHER = "bencherdev/bencher:services/console/src/chunks/docs-explanation/thresholds/en/test/t-test.mdx"
RULES = (
    Rule("flat 2 %, stored run", PERF_EVAL, "one run against one of another visit", flat(0.02), stored=True),
    Rule("flat 5 %, stored run", SGLANG, "one run against one of another visit", flat(0.05), stored=True),
    Rule("flat 2 %", PYTEST, "one run a side, same visit", flat(0.02)),
    Rule("flat 5 %", PYTEST, "one run a side, same visit", flat(0.05)),
    Rule("Mann-Whitney, one process", UTEST, "20 iterations of one process a side", pooled_u, pools=True),
    Rule("Mann-Whitney, pooled", "psf/pyperf:pyperf/_compare.py", "20 iterations of four processes a side, pooled as "
         "there (there a t test)", pooled_u, 4, 4, pools=True),
    Rule("benchstat", "golang/perf:benchmath/anone.go", "one value of ten processes a side", restarts_u, 10, 10),
    Rule("asv continuous", ASV, "two processes a side, five samples each, factor 1.1", asv(1.1), 2, 2, 5, pools=True),
    Rule("asv continuous -f 1.01", ASV, "the same with factor 1.01", asv(1.01), 2, 2, 5, pools=True),
    Rule("criterion", "criterion-rs/criterion.rs:src/analysis/compare.rs", "100 samples of one process a side",
         rules.criterion, 1, 1, 100, pools=True, runs=SLOW_RUNS),
    Rule("nvbench-compare-robust", "NVIDIA/nvbench:docs/nvbench_compare_robust.md", "20 samples of one process a side",
         lambda base, head, _: rules.nvbench_robust(base, head), pools=True),
    Rule("Bencher t_test 0.99", BENCHER, "one run against 64 stored ones, each of its own visit",
         lambda base, head, _: rules.bencher_t(base, head, 0.99), 64, stored=True),
    Rule("TensorRT-LLM 10 %", TRT, "one run against 90 stored days, each a visit; before a merge",
         lambda base, head, _: rules.tensorrt_llm(base, head, 0.1), 90, stored=True),
    Rule("TensorRT-LLM 5 %", TRT, "the same after a merge",
         lambda base, head, _: rules.tensorrt_llm(base, head, 0.05), 90, stored=True),
    Rule("perfgate, 0.1 % / 0.5 %", "", "pairs in balanced order, 4 to 12", base=12, head=12, margins=WIDE),
    Rule("perfgate, 0.02 % / 0.15 %", "", "pairs in balanced order, 4 to 12", base=12, head=12, margins=TIGHT),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a rule made of one truth: shares of comparisons, and GPU-minutes of one on average."""

    blocked: float
    passed: float
    minutes: float

    @property
    def undecided(self) -> float:
        """What is left."""
        return max(0.0, 1 - self.blocked - self.passed)


def side(rng: np.random.Generator, shape: tuple[int, int, int], *, modes: bool, visits: bool) -> Floats:
    """Logs of iteration times, (comparisons, processes, iterations), perhaps with modes and visits."""
    runs, processes, _ = shape
    restart = RESTART_SD * rng.standard_normal((runs, processes, 1))
    if modes:
        restart += MODE_GAP * rng.integers(0, 2, (runs, processes, 1))
    if visits:
        restart += VISIT_SD * rng.standard_normal((runs, processes, 1))
    return restart + ITERATION_SD * rng.standard_normal(shape)


def simulate(rule: Rule, truth: float, *, modes: bool, runs: int | None = None) -> Result:
    """Decide simulated comparisons by a rule; there is no drift within a visit, which flatters rules without pairs."""
    rng = np.random.default_rng([SEED, *rule.name.encode(), round(truth * 1e6), int(modes)])
    total = rule.runs if runs is None else runs
    found: list[Codes] = []
    minutes = 0.0
    for begin in range(0, total, BATCH):
        size = min(BATCH, total - begin)
        base = side(rng, (size, rule.base, rule.iterations), modes=modes, visits=rule.stored)
        head = side(rng, (size, rule.head, rule.iterations), modes=modes, visits=rule.stored) + math.log1p(truth)
        decided, cost = decide(rule, np.exp(base), np.exp(head), rng)
        found.append(decided)
        minutes += cost * size
    ends = np.concatenate(found)
    return Result(float((ends == REGRESSED).mean()), float((ends == PASS).mean()), minutes / total)


def decide(rule: Rule, base: Floats, head: Floats, rng: np.random.Generator) -> tuple[Codes, float]:
    """Codes and GPU-minutes; ours ends when it has decided, and pays for one conditioning trial a side."""
    if rule.decide is not None:
        return rule.decide(base, head, rng), rule.minutes
    if rule.margins is None:
        raise ValueError(f"{rule.name} has neither a rule nor margins")
    d = np.log(rules.summaries(head)) - np.log(rules.summaries(base))
    pairs = d.shape[1]
    looks = sum(look <= pairs for look in DEFAULT_SCHEDULE.looks)
    weights = DEFAULT_SCHEDULE.block[:looks], DEFAULT_SCHEDULE.pass_[:looks]
    schedule = Schedule(DEFAULT_SCHEDULE.looks[:looks], *weights)
    ends = decide_all(d[:, None], (rule.margins,), schedule)
    return ends.runs, 2 * (float(ends.pairs.mean()) + 1) * TRIAL_S / 60


# --- recorded restarts


def said(rule: Rule, recording: Recording, others: Sequence[Recording], rng: np.random.Generator) -> str:
    """How many comparisons of a recording a rule blocks: as many as it holds of the size the rule asks for.

    A rule that asks for more trials than there are gets all of them, as one comparison. Stored runs are the base trials
    of the other recordings.
    """
    trials, iterations = recording.head.shape
    if iterations == 1 and rule.pools:
        return "-"
    size = min(rule.head, trials)
    comparisons = trials // size
    shape = (comparisons, size, -1)
    base, head = (
        part[: comparisons * size, : rule.iterations].reshape(shape) for part in (recording.base, recording.head)
    )
    if rule.stored:
        history = np.concatenate([np.median(other.base, axis=1) for other in others])[-rule.base :]
        base = np.broadcast_to(history[None, :, None], (comparisons, len(history), 1))
    ended, _ = decide(rule, base, head, rng)
    blocked, undecided = (int((ended == code).sum()) for code in (REGRESSED, INCONCLUSIVE))
    return f"{blocked} of {comparisons}" + (f", {undecided} undecided" if undecided else "")


# --- the page

HEAD = """# Other rules on the same restarts

Written by `benchmarks/other_rules.py` (seed {seed}); do not edit. Each rule was written anew from its description
(`benchmarks/foreign_rules.py`), with the tool's own defaults, and gets the measurement it asks for. Unless the base is
stored, both sides are measured on one visit. Only slowdowns count as blocked, also for two-sided tests.

| rule | what it is given | described in |
|---|---|---|
{sources}
A comparison's GPU-minutes count {trial:g} s a trial with its 20 iterations and {iteration:g} s for each further
iteration, as measured on an H200; what was stored before is free, and perfgate's two conditioning trials are not.

## Simulated restarts

Figures measured on an H200: iterations of a trial spread by {iteration_sd:g} %, the two restarts of a pair by
{restart_sd:g} % besides, visits by {visit_sd:g} % (normal). {runs:,} comparisons a figure, {slow_runs:,} for criterion.
There is no drift within a visit, which flatters every rule that does not pair. "Blocked, no change" is a false block;
+0.1 % is what `llama-8b-decode` declares ignorable, +0.5 % what it must catch (its tight sister: 0.02 % and 0.15 %). A
slowdown is missed when it passes; a rule that knows a third word may leave it undecided instead.

"""

COLUMNS = (
    "rule", "GPU-minutes", "blocked, no change", "blocked, +0.1 %", "missed, +0.5 %", "undecided, +0.5 %",
    "missed, +2 %",
)  # fmt: skip
TABLE = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"

RECORDED = """## Recorded restarts of an H200

Comparisons blocked, of `itl_median` or the iterations behind it, in `tests/fixtures/h200-*.csv`. A recording holds as
many comparisons as it has groups of trials of the size that a rule asks for; a rule that asks for more than there is
gets what there is, as one comparison. Rules with stored runs get the base trials of the other recordings as history. A
dash: single iterations were not kept. The change is that of all pairs.

"""

FOOT = """
## Reading it

- A flat threshold on one run has no error rate: against a run of another visit the difference between visits decides;
  on the same visit everything below the threshold passes, and half of what is exactly on it.
- Iterations of one process share that process's restart. A test that counts them as independent finds the difference
  between two restarts, which is real and says nothing about the builds.
- One value a restart repairs that (benchstat), and sees half a percent as well as perfgate, with more trials. But a
  significance test alone has no margin: it blocks unchanged builds at half its alpha (the other half are speed-ups),
  again in every gate, and blocks what is too small to matter as soon as it can see it.
- A factor of 1.1, a noise threshold of 1 % or a history of visits does not see half a percent: such rules were made for
  other sizes of change.
- perfgate pays with trials for both error rates, and says when they do not suffice.
"""


def page(runs: int | None = None) -> str:
    """The page as Markdown."""
    sources = "".join(f"| {rule.name} | {rule.plan} | {rule.source or 'README.md'} |\n" for rule in RULES)
    parts = [
        HEAD.format(
            seed=SEED, sources=sources, trial=TRIAL_S, iteration=ITERATION_S, iteration_sd=ITERATION_SD * 100,
            restart_sd=RESTART_SD * 100, visit_sd=VISIT_SD * 100, runs=runs or RUNS, slow_runs=runs or SLOW_RUNS,
        )
    ]  # fmt: skip
    for modes, title in ((False, "A quiet visit"), (True, "Restarts in two modes 0.2 % apart")):
        parts.append(f"### {title}: pair sd {pair_sd(modes=modes) * 100:.2f} %\n\n" + TABLE)
        parts.extend(line + "\n" for line in lines(modes=modes, runs=runs))
        parts.append("\n")
    return "".join(parts) + recorded(ROOT / "tests" / "fixtures") + FOOT


def pair_sd(*, modes: bool) -> float:
    """Standard deviation of a pair's log ratio of medians in the simulation, itself simulated."""
    logs = side(np.random.default_rng(SEED), (20_000, 2, KEPT), modes=modes, visits=False)
    return float(np.diff(np.median(logs, axis=2), axis=1).std())


def lines(*, modes: bool, runs: int | None) -> Iterator[str]:
    """The rows of one table of simulated restarts."""
    for rule in RULES:
        found = [simulate(rule, truth, modes=modes, runs=runs) for truth in TRUTHS]
        none, ignorable, half, two = found
        costs = sorted({f"{one.minutes:.1f}" for one in found}, key=float)
        cells = [
            rule.name,
            " to ".join((costs[0], costs[-1])) if len(costs) > 1 else costs[0],
            *(percent(share) for share in (none.blocked, ignorable.blocked, half.passed, half.undecided, two.passed)),
        ]
        print(*cells, sep="  ", flush=True)
        yield f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    """A share with one decimal, as percent."""
    return f"{share * 100:.1f} %"


def recorded(folder: Path) -> str:
    """The section on recorded restarts; empty without recordings."""
    found = recordings(folder)
    if not found:
        return ""
    letters = [chr(ord("A") + n) for n in range(len(found))]
    text = RECORDED + "".join(
        f"- {letter}: {one.name}, {len(one.base)} pairs, {one.change * 100:+.2f} %\n"
        for letter, one in zip(letters, found, strict=True)
    )
    text += f"\n| rule | {' | '.join(letters)} |\n|{'---|' * (len(found) + 1)}\n"
    rng = np.random.default_rng(SEED)
    for rule in RULES:
        words = [said(rule, one, [other for other in found if other is not one], rng) for one in found]
        text += f"| {rule.name} | {' | '.join(words)} |\n"
    return text


def main() -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, help="simulated comparisons a figure")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the page goes")
    words = parser.parse_args()
    text = page(words.runs)
    (words.folder / "other-rules.md").write_text(text)


if __name__ == "__main__":
    main()
