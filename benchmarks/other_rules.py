"""Decide the same restarts by the rules of other tools and by ours: writes docs/other-rules.txt.

``python benchmarks/other_rules.py`` takes about five minutes on one core. The rules are in
:mod:`perfgate.drill.peer_rules`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfgate.drill import peer_rules as rules
from perfgate.drill.peer_rules import KEPT, Codes, PeerRule
from perfgate.drill.recordings import STEP, Recording, distinct, read_recordings
from perfgate.stats.estimate import Floats
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED, Schedule

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "research"))

from many_runs import Decisions, Margins, decide_all  # noqa: E402 (found by the line above)

SEED = 20261120
RUNS = 4000
SLOW_RUNS = 1000
"""For rules that bootstrap."""
BATCH = 250
TRUTHS = (0.0, 0.001, 0.005, 0.02)
WIDE, TIGHT = Margins(0.001, 0.005), Margins(0.0002, 0.0015)

TRIAL_S, ITERATION_S = 30.0, 0.7
"""Measured on an H200: a trial with its 2 + 20 iterations, and one further iteration."""
ITERATION_SD, RESTART_SD, VISIT_SD = 0.0016, 0.0003, 0.012
"""H200: between iterations of a trial, between the restarts of a pair (tests/fixtures/h200-llama-8b-iterations.csv:
pairs spread by 0.05 to 0.10 %), between visits (base steps of 5.356, 5.281 and 5.226 ms on three)."""
MODE_GAP = 0.002
"""Between the modes of restarts on the noisier visit."""


@dataclass(frozen=True)
class Ours(PeerRule):
    """Our rule beside the others: it takes pairs until it has decided.

    Args:
        margins: The gate's.
    """

    margins: Margins = WIDE


def ours(margins: Margins) -> Ours:
    """Our rule with some margins."""
    name = f"perfgate, {margins.ignorable * 100:g} % / {margins.must_catch * 100:g} %"
    return Ours(
        name, "", "pairs in random order, 6 to 12", lambda base, head, _: our_ends(base, head, margins).runs,
        base=12, head=12, margins=margins,
    )  # fmt: skip


def our_ends(base: Floats, head: Floats, margins: Margins) -> Decisions:
    """What comparisons end with by our rule, as far as their pairs reach."""
    d = np.log(rules.summaries(head)) - np.log(rules.summaries(base))
    looks = sum(look <= d.shape[1] for look in DEFAULT_SCHEDULE.looks)
    if not looks:
        none = np.full((len(d), 1), INCONCLUSIVE, np.int8)
        return Decisions(none[:, 0], none, np.zeros(len(d), np.int64))
    weights = DEFAULT_SCHEDULE.block[:looks], DEFAULT_SCHEDULE.pass_[:looks]
    return decide_all(d[:, None], (margins,), Schedule(DEFAULT_SCHEDULE.looks[:looks], *weights))


RULES = (*rules.PEERS, ours(WIDE), ours(TIGHT))


def minutes(rule: PeerRule) -> float:
    """GPU-minutes of one comparison, stored runs not counted."""
    return rule.starts * (TRIAL_S + max(0, rule.iterations - KEPT) * ITERATION_S) / 60


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


def simulate(rule: PeerRule, truth: float, *, modes: bool, runs: int | None = None) -> Result:
    """Decide simulated comparisons by a rule; there is no drift within a visit, which flatters rules without pairs."""
    rng = np.random.default_rng([SEED, *rule.name.encode(), round(truth * 1e6), int(modes)])
    total = runs or (SLOW_RUNS if rule.resamples else RUNS)
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


def decide(rule: PeerRule, base: Floats, head: Floats, rng: np.random.Generator) -> tuple[Codes, float]:
    """Codes and GPU-minutes; ours ends when it has decided, and pays for one warm-up trial a side."""
    if isinstance(rule, Ours):
        ends = our_ends(base, head, rule.margins)
        return ends.runs, 2 * (float(ends.pairs.mean()) + 1) * TRIAL_S / 60
    return rule.decide(base, head, rng), minutes(rule)


# --- recorded restarts


def said(rule: PeerRule, recording: Recording, others: Sequence[Recording], rng: np.random.Generator) -> str:
    """How many comparisons of a recording a rule blocks: as many as it holds of the size the rule asks for.

    A rule that asks for more trials than there are gets all of them, as one comparison. Stored runs are the base trials
    of the other recordings.
    """
    if recording.iterations is None and rule.pools:
        return "-"
    one, other = sides(recording)
    trials = len(one)
    size = min(rule.head, trials)
    comparisons = trials // size
    shape = (comparisons, size, -1)
    base, head = (part[: comparisons * size, : rule.iterations].reshape(shape) for part in (one, other))
    if rule.stored:
        history = np.concatenate([rules.summaries(sides(each)[0]) for each in others])[-rule.base :]
        base = np.broadcast_to(history[None, :, None], (comparisons, len(history), 1))
    ended, _ = decide(rule, base, head, rng)
    blocked, undecided = (int((ended == code).sum()) for code in (REGRESSED, INCONCLUSIVE))
    return f"{blocked} of {comparisons}" + (f", {undecided} undecided" if undecided else "")


def sides(recording: Recording) -> tuple[Floats, Floats]:
    """Times of base and head, (trials, iterations), or one value a trial."""
    values = recording.metrics[STEP]
    return recording.iterations or (np.array(values.base)[:, None], np.array(values.head)[:, None])


def recordings(folder: Path) -> list[Recording]:
    """Every run in ``h200-llama-8b-*.csv``; one that is there both by iteration and by trial counts once."""
    return list(distinct(one for file in sorted(folder.glob("h200-llama-8b-*.csv")) for one in read_recordings(file)))


def change(recording: Recording) -> float:
    """Geometric mean of head over base, minus one."""
    return math.expm1(float(recording.log_ratios(STEP).mean()))


# --- the page

HEAD = """# Other rules on the same restarts

Written by `benchmarks/other_rules.py` (seed {seed}); do not edit. Each rule was written anew from its description
(`perfgate/drill/peer_rules.py`), with the tool's own defaults, and gets the measurement it asks for. Unless the base is
stored, both sides are measured on one visit. Only slowdowns count as blocked, also for two-sided tests.

| rule | what it is given | described in |
|---|---|---|
{sources}
A comparison's GPU-minutes count {trial:g} s a trial with its 20 iterations and {iteration:g} s for each further
iteration, as measured on an H200; what was stored before is free, and perfgate's two warm-up trials are not.

## Simulated restarts

Figures measured on an H200: iterations of a trial spread by {iteration_sd:g} %, the two restarts of a pair by
{restart_sd:g} % besides, visits by {visit_sd:g} % (normal). {runs:,} comparisons a figure, {slow_runs:,} for criterion.
There is no drift within a visit. +0.1 % is what `llama-8b-decode` declares ignorable, +0.5 % what it must catch (its
tight sister: 0.02 % and 0.15 %). A slowdown is missed when it passes.

"""

COLUMNS = (
    "rule", "GPU-minutes", "blocked, no change", "blocked, +0.1 %", "missed, +0.5 %", "undecided, +0.5 %",
    "missed, +2 %",
)  # fmt: skip
TABLE = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"

RECORDED = """## Recorded restarts of an H200

Comparisons blocked, of `itl_median` or the iterations behind it, in `tests/fixtures/h200-llama-8b-*.csv`. A recording
holds as many comparisons as it has groups of trials of the size that a rule asks for; a rule that asks for more than
there is gets what there is, as one comparison. Rules with stored runs get the base trials of the other recordings as
history. A dash: single iterations were not kept. The change is that of all pairs. [Replayed pairs](drills-replay.txt)
says more of the same recordings.

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
    return "".join(parts) + recorded(ROOT / "tests" / "fixtures")


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
        f"- {letter}: {one.name}, {one.pairs} pairs, {change(one) * 100:+.2f} %\n"
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
    (words.folder / "other-rules.txt").write_text(text)


if __name__ == "__main__":
    main()
