"""Simulate how often the rule blocks what is fine and passes what is not: writes docs/error-rates.txt and its picture.

``python benchmarks/error_rates.py --runs 20000`` takes half an hour on two cores; the same seed and numpy give the same
page. Sections that other scripts wrote (shards, bisection, changes over many nights) stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import dropped_rates
import head_rates
import instrument_rates
import numpy as np
import order_rates
import state_rates
from claimed_rate import REFUTED, SHOWN, ClaimedRate
from effect_picture import Panel, Point, draw
from page_sections import merged
from restart_models import MODELS, NOISY_PAIR_SD, PAIR_SD, Model, normal
from rule_twin import Decisions, Margins, decide_all, disagreements
from visit_rates import section
from visit_rates import simulate_all as simulate_visits

from perfgate.drill.peer_rules import PASS, REGRESSED
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.sequential import DEFAULT_SCHEDULE

ROOT = Path(__file__).parents[1]
SEED = 20261120
RUNS = 100_000
BATCH = 5_000
CHECKED = 120
"""Runs a model, number of gates and case that the project's own functions decide as well."""
POINT_RUNS = 20_000
GATES = (1, 3, 8)
WIDE, TIGHT = Margins(0.001, 0.005), Margins(0.0002, 0.0015)
"""Of ``itl_median`` in llama-8b-decode and in llama-8b-decode-tight."""
CONFIDENCE = 0.99
OTHER_PAIR_SDS = {"tpot_mean": 0.0018, "ttft_median": 0.023}
"""Of the other gates of llama-8b-decode on an H200, for the picture."""

Case = Literal["no change", "ignorable", "must_catch"]
SECTIONS: tuple[tuple[Case, Margins], ...] = (
    ("no change", WIDE),
    ("ignorable", WIDE),
    ("ignorable", TIGHT),
    ("must_catch", WIDE),
    ("must_catch", TIGHT),
)


@dataclass(frozen=True)
class Row(ClaimedRate):
    """One simulated truth, counted.

    Args:
        model: How restarts differ.
        gates: Gates of the run.
        case: Their true slowdowns: 0; all ``ignorable``; the first ``must_catch`` and the others 0.
        margins: Of every gate.
        runs: Simulated runs.
        blocked: Runs that ended regressed.
        passed: Runs that ended pass.
        first_passed: Runs in which the first gate, the slow one of ``must_catch``, stood at pass when the run ended.
        pairs: Pairs of all runs together.
    """

    model: Model
    gates: int
    case: Case
    margins: Margins
    runs: int
    blocked: int
    passed: int
    first_passed: int
    pairs: int

    @property
    def wrong(self) -> int:
        """Runs with the error whose rate is declared for this case."""
        return self.first_passed if self.case == "must_catch" else self.blocked

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
        """What the simulation says of the claim."""
        return super().standing if self.model.claims else "none made"


def slowdowns(case: Case, gates: int, margins: Margins) -> tuple[float, ...]:
    """True slowdowns of the gates in a case."""
    if case == "must_catch":
        return (margins.must_catch, *(0.0,) * (gates - 1))
    return (margins.ignorable if case == "ignorable" else 0.0,) * gates


def models_for(case: Case) -> list[Model]:
    """The models that a case tells apart: without a slowdown, all restarts of the head are alike."""
    return [model for model in MODELS if case != "no change" or model.slow_share == 1]


def seeded(*place: int) -> np.random.Generator:
    """A generator of its own for every place, so that no row depends on another."""
    return np.random.default_rng([SEED, *place])


def simulate(model: Model, gates: int, case: Case, margins: Margins = WIDE, runs: int = RUNS) -> Row:
    """Count what the rule makes of simulated runs."""
    rng = seeded(SECTIONS.index((case, margins)), gates, *model_key(model))
    blocked = passed = first_passed = pairs = 0
    for begin in range(0, runs, BATCH):
        d = model.pairs(rng, min(BATCH, runs - begin), slowdowns(case, gates, margins))
        ends = decide_all(d, (margins,) * gates)
        blocked += int((ends.runs == REGRESSED).sum())
        passed += int((ends.runs == PASS).sum())
        first_passed += int((ends.gates[:, 0] == PASS).sum())
        pairs += int(ends.pairs.sum())
    return Row(model, gates, case, margins, runs, blocked, passed, first_passed, pairs)


def model_key(model: Model) -> tuple[int, ...]:
    """Seed words of a model, from what tells it from the others."""
    return (*model.name.encode(), round(model.pair_sd * 1e9))


def check_twin(models: Sequence[Model] = MODELS, runs: int = CHECKED) -> tuple[int, int]:
    """Runs compared between the vectorised rule and the project's own functions, and how many differ.

    Slowdowns up to 1.2 times must_catch are drawn besides the simulated cases, so that every verdict and every number
    of pairs occurs.
    """
    compared = differing = 0
    for model in models:
        for gates in GATES:
            rng = seeded(99, gates, *model_key(model))
            cases = [(slowdowns(case, gates, margins), margins) for case, margins in SECTIONS]
            drawn = rng.uniform(0, 1.2 * TIGHT.must_catch, gates)
            cases.append((tuple(drawn.tolist()), TIGHT))
            for slow, margins in cases:
                d = model.pairs(rng, runs // len(cases), slow)
                compared += len(d)
                differing += disagreements(d, (margins,) * gates)
    return compared, differing


# --- the picture


def curve(scenario: str, pair_sd: float, effects: Sequence[float], runs: int) -> Panel:
    """Blocked and passed runs of a shipped scenario against a slowdown of its decode step; restarts are normal."""
    gates = load(ROOT / "scenarios" / f"{scenario}.yaml").scenario.gates
    names = [gate.metric for gate in gates]
    margins = [Margins(gate.ignorable, gate.must_catch) for gate in gates]
    others = {} if scenario == "cpu-tiny" else OTHER_PAIR_SDS
    sds = np.array([others.get(name, pair_sd) for name in names])[None, :, None]
    points = []
    for n, effect in enumerate(effects):
        rng = seeded(7, n, *scenario.encode(), round(pair_sd * 1e6))
        d = sds * normal(1.0).pairs(rng, runs, (0.0,) * len(names))
        slow = np.array([effect if name in ("itl_median", "tpot_mean") else 0.0 for name in names])
        ends = decide_all(d + np.log1p(slow)[None, :, None], margins)
        points.append(Point(effect, share(ends, REGRESSED), share(ends, PASS)))
    title = f"{scenario}, pair sd {pair_sd * 100:.4g} %"
    return Panel(title, margins[0].ignorable, margins[0].must_catch, tuple(points))


def share(ends: Decisions, verdict: int) -> float:
    """Share of runs that ended with a verdict."""
    return float((ends.runs == verdict).mean())


def panels(runs: int = POINT_RUNS) -> list[Panel]:
    """The four panels of the picture."""
    return [
        curve("llama-8b-decode", PAIR_SD, np.linspace(0, 0.008, 33).tolist(), runs),
        curve("llama-8b-decode", NOISY_PAIR_SD, np.linspace(0, 0.008, 33).tolist(), runs),
        curve("llama-8b-decode-tight", PAIR_SD, np.linspace(0, 0.003, 31).tolist(), runs),
        curve("cpu-tiny", 0.07, np.linspace(0, 1, 26).tolist(), runs),
    ]


# --- the page

HEAD = """# Error rates, simulated

Written by `benchmarks/error_rates.py` (seed {seed}); do not edit. {runs:,} simulated runs a row.

A run of perfgate declares two error rates: it blocks with probability at most {alpha} when no gate is slower than
its `ignorable`, and it passes a gate that is slower by `must_catch` with probability at most {beta}. For normal
restarts this follows from Student's t, Bonferroni over the looks and Holm over the gates. This page asks what happens
when restarts are not normal. Every run has looks at {looks} pairs; gates of one trial are correlated by
one half. The margins are those of `itl_median`, 0.1 % and 0.5 % in `llama-8b-decode`, 0.02 % and 0.15 % in its tight
sister. The tight ones are the harder test: with the wide ones most runs pass at six pairs, before any look may block.

**{verdict}** A claim counts as shown when the one-sided 99 % upper confidence bound of
the simulated rate (Clopper and Pearson 1934; "at most") does not exceed the declared rate, and as refuted when the
lower bound ("at least") does. The looks of a scenario spend 0.6 of alpha and 0.8 of beta; the rest is for further
looks.

{remarks}

The simulation uses a vectorised copy of the rule (`benchmarks/rule_twin.py`). In the same program {compared:,} runs of
all models, with 1, 3 and 8 gates, were also decided look by look by `perfgate.judge.rule.judge_series` itself:
{differing} ended differently (verdict of the run, verdict of each gate, number of pairs).

## How restarts differ

| model | pair sd | what it is |
|---|---|---|
"""

TITLES: dict[Case, str] = {
    "no change": "No gate is slower",
    "ignorable": "Every gate is slower by exactly `ignorable`",
    "must_catch": "One gate is slower by exactly `must_catch`, the others are unchanged",
}
INTROS: dict[Case, str] = {
    "no change": "Every block is false. The claim is that at most {alpha} of runs block.",
    "ignorable": """The worst that is still no regression. The claim is that at most {alpha} of runs block; a pass is
right as well, because the slowdown is below `must_catch`.""",
    "must_catch": """The least that must be caught. The claim is that the slow gate passes in at most {beta} of runs;
the column "slow gate passed" counts it. A run that ends inconclusive is not a miss: it does not pass.""",
}

FOOT = """## What a slowdown of any size comes to

![Share of runs blocked, passed and inconclusive against the true slowdown](error-rates.svg)

Normal restarts, {point_runs:,} runs a point, the gates of the shipped scenarios. The slowdown is that of the decode
step: it hits `itl_median` and `tpot_mean` alike and leaves `ttft_median`. The pair sd in a title is that of
`itl_median`; on the GPU `tpot_mean` has {tpot:g} % and `ttft_median` {ttft:g} %, and both gates of `cpu-tiny` have 7 %.
Dotted lines are the margins of `itl_median`. Between them either verdict is right.

## Reading it

- Both sides of a pair are restarts on the same machine minutes apart. As long as an unchanged build draws them from one
  population, the log ratio of a pair is symmetric about the truth, whatever that population looks like: modes, tails
  and spikes cost pairs, and runs that end inconclusive, before they cost validity.
- A drift, or anything else that makes the second trial of a pair slower, widens the pairs and does not move their
  mean, because a coin for each pair says which side is second. The first four pairs are never all alike. Of free coins
  they are in one run of eight, and a drift of three times the pair sd then falsely blocks 2 % and misses 6 % of runs.
- A change that reaches only some restarts of the head breaks the symmetry: no claim is made for it. Its pairs fall in
  two groups, and with few pairs the slow one may be missing altogether. Reports carry the caution `times-uneven` when
  they see both.
"""


def page(rows: Sequence[Row], compared: int, differing: int) -> str:
    """The page as Markdown."""
    claims = [row for row in rows if row.model.claims]
    refuted = [row for row in claims if row.standing == REFUTED]
    shown = sum(row.standing == SHOWN for row in claims)
    verdict = f"{shown} of {len(claims)} claims are shown, {len(refuted)} are refuted."
    refusals = [
        f"Refuted: {row.case} ({row.margins.must_catch * 100:g} %), {label(row.model)}, {row.gates} gates: "
        f"{percent(row.wrong / row.runs)} against {row.declared * 100:g} %."
        for row in refuted
    ]
    looks = ", ".join(map(str, DEFAULT_SCHEDULE.looks))
    models = "".join(f"| {label(model)} | {model.pair_sd * 100:.2g} % | {model.about} |\n" for model in models_of(rows))
    head = HEAD.format(
        seed=SEED,
        runs=rows[0].runs,
        alpha=f"{ALPHA * 100:g} %",
        beta=f"{BETA * 100:g} %",
        looks=looks,
        verdict=verdict,
        remarks="\n".join(f"- {remark}" for remark in (*refusals, *largest(claims))),
        compared=compared,
        differing=differing or "none",
    )
    parts = [head + models]
    for case, margins in SECTIONS:
        title = f"## {TITLES[case]}: margins {margins.ignorable * 100:.4g} % and {margins.must_catch * 100:.4g} %\n\n"
        intro = INTROS[case].format(alpha=f"{ALPHA * 100:g} %", beta=f"{BETA * 100:g} %")
        table = "".join(f"| {' | '.join(cells(r))} |\n" for r in rows if (r.case, r.margins) == (case, margins))
        parts.append(title + intro + "\n\n" + heading(case) + table)
    parts.append(
        FOOT.format(
            point_runs=POINT_RUNS, tpot=100 * OTHER_PAIR_SDS["tpot_mean"], ttft=100 * OTHER_PAIR_SDS["ttft_median"]
        )
    )
    return "\n".join(parts)


def largest(claims: Sequence[Row]) -> Iterator[str]:
    """A sentence for each declared rate: the most frequent wrong verdict among the claims."""
    for words, rows in (
        ("falsely blocked", [row for row in claims if row.case != "must_catch"]),
        ("missed", [row for row in claims if row.case == "must_catch"]),
    ):
        if rows:
            row = max(rows, key=lambda one: one.wrong / one.runs)
            gates = "1 gate" if row.gates == 1 else f"{row.gates} gates"
            rate = f"{percent(row.wrong / row.runs)} of runs (declared {row.declared * 100:g} %)"
            yield f"The most {words}: {rate}, {label(row.model)}, {gates}."


def models_of(rows: Sequence[Row]) -> Iterator[Model]:
    """Each model once, in order."""
    seen: list[Model] = []
    for row in rows:
        if row.model not in seen:
            seen.append(row.model)
            yield row.model


def label(model: Model) -> str:
    """A model's name, with its pair sd where the name comes twice."""
    names = [other.name for other in MODELS]
    return f"{model.name}, {model.pair_sd * 100:.2g} %" if names.count(model.name) > 1 else model.name


def heading(case: Case) -> str:
    """The table's first two lines."""
    claimed = ["slow gate passed"] if case == "must_catch" else []
    counts = ["blocked", "passed", "inconclusive", "mean pairs", *claimed]
    names = ["restarts", "gates", *counts, "at least", "at most", "claim"]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"


def cells(row: Row) -> list[str]:
    """A row of its case's table."""
    undecided = row.runs - row.blocked - row.passed
    claimed = [percent(row.first_passed / row.runs)] if row.case == "must_catch" else []
    return [
        label(row.model),
        str(row.gates),
        *(percent(count / row.runs) for count in (row.blocked, row.passed, undecided)),
        f"{row.pairs / row.runs:.1f}",
        *claimed,
        percent(row.least),
        percent(row.most),
        row.standing,
    ]


def percent(rate: float) -> str:
    """A rate with two decimals, as percent."""
    return f"{rate * 100:.2f} %"


def main() -> int:
    """Simulate, check the twin, write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="simulated runs a row")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the page and the picture go")
    words = parser.parse_args()
    compared, differing = check_twin()
    print(f"{compared} runs compared with judge_series, {differing} differ", flush=True)
    if differing:
        return 1
    rows = []
    for case, margins in SECTIONS:
        for model in models_for(case):
            for gates in GATES:
                rows.append(simulate(model, gates, case, margins, words.runs))
                print(case, margins.must_catch, *cells(rows[-1]), sep="  ", flush=True)
    imperfect, promises = instrument_rates.simulate_all()
    drops = dropped_rates.section(dropped_rates.simulate_all())
    several = head_rates.simulate_all()
    states, visits = state_rates.simulate_all(), simulate_visits()
    orders = order_rates.simulate_all()
    known = instrument_rates.section(imperfect, promises)
    text = "\n".join(
        (page(rows, compared, differing), known, head_rates.section(several), drops, states, section(visits),
         order_rates.section(orders))
    )  # fmt: skip
    file = words.folder / "error-rates.txt"
    file.write_text(merged(file.read_text() if file.exists() else "", text))
    (words.folder / "error-rates.svg").write_text(draw(panels()))
    standings = [*(row.standing for row in rows), *(row.standing for row in imperfect)]
    standings += [row.standing for row in several]
    standings += [row.standing for row in visits]
    standings += [row.standing for row in orders]
    return int(REFUTED in standings or "| **refuted** |" in states)


if __name__ == "__main__":
    sys.exit(main())
