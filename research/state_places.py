"""What ``research/state_rates.py`` simulates: machines with two states, slowdowns, and what tells the states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import state_models as models
from claimed_rate import ClaimedRate
from many_runs import Margins
from state_models import GAP, RECORDED, STICKY, StateModel
from state_runs import Measured

from perfgate.judge.machine_states import Source
from perfgate.scenario.plan import ALPHA, BETA

SEED = 20261123
GATES = (1, 3)
WIDE, TIGHT = Margins(0.001, 0.005), Margins(0.0002, 0.0015)
PERCENT_GAP = math.expm1(GAP)

Case = Literal["no change", "ignorable", "must_catch"]
CASES: tuple[Case, ...] = ("no change", "ignorable", "must_catch")

NONE = StateModel("none", "One state.", models.no_states)
SHARED = StateModel("shared", "Both trials of a pair are in one state, slow in every second pair.", models.shared)
CHAINED = StateModel("sticky", "A trial has one state, in four of five that of the trial before it.", STICKY)
JUMPING = StateModel(
    "jumping", "As recorded: a trial begins slow in 83 % after one that ended slow and in 60 % after one that ended "
    "fast, jumps to fast with 1.4 % at each half iteration, and stays.", RECORDED,
)  # fmt: skip
SETTLED = StateModel(
    "settled", "As recorded where warm-up waits until a GPU is fast: of the first trials 70 % are slow, of later ones "
    "3 %.", models.settled(0.7, 0.03),
)  # fmt: skip


def variant(model: StateModel, name: str, about: str, **changes: object) -> StateModel:
    """A model with something added."""
    return replace(model, name=f"{model.name}, {name}", about=about, **changes)  # type: ignore[arg-type]


def of_subjects(model: StateModel, percent: float, *, carried: bool = False) -> StateModel:
    """A model whose sides are one draw each of what a compiler makes of them; the error may carry that."""
    name, about = f"subjects {percent:g} %", f"Each side is off by a draw of {percent:g} % for the whole run."
    if carried:
        name, about = f"{name} carried", "The same, and the gates declare it as `draw_sd`, so every error carries it."
    return variant(model, name, about, restarts=models.compiled(percent / 100), claims=carried,
                   carried=percent / 100 if carried else 0.0)  # fmt: skip


SHAPES: tuple[StateModel, ...] = (
    variant(JUMPING, "t2", "Restarts of either side follow a t distribution with 2 degrees of freedom.",
            restarts=models.student(2)),
    variant(JUMPING, "t3", "The same with 3.", restarts=models.student(3)),
    variant(JUMPING, "contaminated", "Normal, and one restart in ten spreads by five times as much.",
            restarts=models.shaped(models.contaminated)),
    variant(JUMPING, "exponential", "Restarts are exponential, with the tail towards slow.",
            restarts=models.shaped(models.exponential)),
    variant(JUMPING, "two levels", "Restarts lie on two levels 0.22 % apart, as often on either.",
            restarts=models.shaped(models.on_two_levels)),
    variant(JUMPING, "uneven", "In the fast state a restart has a further effect of 0.33 %, normal.",
            fast_noise=0.0033),
    variant(JUMPING, "head exponential", "The head's restarts alone are exponential, mean zero.",
            restarts=models.shaped(models.exponential, 1)),
    variant(JUMPING, "head on two levels", "The head's restarts alone lie on two levels.",
            restarts=models.shaped(models.on_two_levels, 1)),
)  # fmt: skip
BY_STEPS: tuple[StateModel, ...] = (
    NONE, SHARED, CHAINED, JUMPING,
    variant(JUMPING, "AR(1)", "Restarts keep 0.7 of the effect of the trial before.",
            restarts=models.autoregressive(0.7)),
    variant(JUMPING, "second slower", "The second trial of a pair is slower by 0.1 %.",
            restarts=models.second_slower(0.001)),
    variant(JUMPING, "spiky", "5 % of trials of either side are slower by 0.5 % on average.",
            restarts=models.spiky(0.05, 0.005)),
    *SHAPES,
    *(of_subjects(NONE, percent, carried=carried) for percent in (0.02, 0.05, 0.1) for carried in (False, True)),
    *(of_subjects(JUMPING, 0.05, carried=carried) for carried in (False, True)),
)  # fmt: skip
BY_PROBE: tuple[StateModel, ...] = (
    SHARED, CHAINED, JUMPING, SETTLED, *SHAPES,
    variant(SETTLED, "probe moved", "The probe takes 10 % longer with the head.", moved=0.1),
    *(variant(model, f"{percent} % wrong", f"{percent} % of the iterations have the label of the other state.",
              mislabelled=percent / 100) for model, percent in ((NONE, 5), (CHAINED, 1), (CHAINED, 5), (JUMPING, 1),
                                                                (JUMPING, 5))),
)  # fmt: skip
MAIN = (NONE, SHARED, CHAINED, JUMPING, SETTLED)
TIGHTLY = (NONE, CHAINED, JUMPING, SETTLED)
CAUSED: tuple[StateModel, ...] = (
    *(StateModel(f"in 20 % and {head} %", f"The base's trials are slow in 20 %, the head's in {head} %.",
                 models.caused(0.2, head / 100), slower=head / 100 - 0.2) for head in (30, 45, 70)),
    StateModel("never to always", "The base's trials are fast, the head's slow.", models.caused(0, 1), slower=1),
    StateModel("from the middle on", "The head becomes slow in the middle of each trial, and the base never.",
               models.head_tires, slower=0.5),
)  # fmt: skip
EFFECTS = (3 * PERCENT_GAP, PERCENT_GAP, PERCENT_GAP / 2, PERCENT_GAP / 10)
QUIET = 0.5
"""Of the recorded restart sd, for the power of tight margins: pairs then spread by 0.10 % within a state."""
POWER_EFFECT = 0.0025

SOURCES: tuple[Source, ...] = ("steps", "probe")


@dataclass(frozen=True)
class Place:
    """What is simulated together: one model and slowdown, by one gate and, for declared rates, by three.

    Args:
        part: Which table it is for.
        model: The machine.
        source: What tells the states.
        margins: Of every gate.
        slow: The slowdown of the first gate and of the others.
        case: Its name, where it has one.
    """

    part: str
    model: StateModel
    source: Source
    margins: Margins
    slow: tuple[float, float]
    case: Case = "no change"

    @property
    def gates(self) -> tuple[int, ...]:
        """Numbers of gates that it is decided by."""
        return GATES if self.part == "claims" else GATES[:1]

    @property
    def seed(self) -> list[int]:
        """Seed words from what tells it from other places; both sources see the same runs."""
        return [SEED, *self.model.name.encode(), *(round(x * 1e9) for x in (self.margins.must_catch, *self.slow))]

    def measure(self, rng: np.random.Generator, runs: int) -> Measured:
        """Simulated runs with their slowdown."""
        first, other = self.slow
        gates = max(self.gates)
        slow = (first, *[other] * (gates - 1))
        return Measured(self.model.draw(rng, runs, gates), slow, self.margins, self.source, self.model.carried)


def claims() -> Iterable[Place]:
    """Of each model the cases for which error rates are declared."""
    both: tuple[tuple[Source, tuple[StateModel, ...]], ...] = (("steps", BY_STEPS), ("probe", BY_PROBE))
    for margins in (WIDE, TIGHT):
        for source, every in both:
            for model, case in product(every, CASES):
                if case == "no change" and (margins == TIGHT or model not in MAIN):
                    continue
                subjects = "subjects" in model.name and model.name.startswith("none")
                if margins == WIDE or model in TIGHTLY or subjects:
                    first = 0.0 if case == "no change" else getattr(margins, case)
                    yield Place("claims", model, source, margins, (first, first * (case == "ignorable")), case)


PLACES: tuple[Place, ...] = (
    *claims(),
    *(Place("caused", model, source, WIDE, (0.0, 0.0)) for model, source in product(CAUSED, SOURCES)),
    *(Place("effects", model, source, WIDE, (effect, effect))
      for model, source, effect in product((CHAINED, JUMPING), SOURCES, EFFECTS)),
    *(Place("power", variant(model, "quiet", "", restarts=models.quiet(model.restarts, QUIET)), source, TIGHT,
            (effect, effect))
      for model, source, effect in product((SHARED, CHAINED, JUMPING, SETTLED), SOURCES, (0.0, POWER_EFFECT))),
)  # fmt: skip


@dataclass(frozen=True)
class Row(ClaimedRate):
    """One place by a number of gates, counted.

    Args:
        place: What was simulated.
        gates: Gates of the run.
        runs: Simulated runs.
        blocked: Runs that ended regressed.
        by_share: Of these, runs that the slow state's share blocked.
        passed: Runs that ended pass.
        passed_within: Of these, runs that were compared within states; their reports say what the share could cost.
        too_low: Of these, runs whose reports say less than the head does lose by its share.
        first_passed: Runs whose first gate passed, in each state.
        pairs: Pairs of all runs together.
    """

    place: Place
    gates: int
    runs: int
    blocked: int
    by_share: int
    passed: int
    passed_within: int
    too_low: int
    first_passed: int
    pairs: int

    @property
    def wrong(self) -> int:
        """Runs with the error whose rate is declared."""
        return self.first_passed if self.place.case == "must_catch" else self.blocked

    @property
    def declared(self) -> float:
        """The rate declared for it."""
        return BETA if self.place.case == "must_catch" else ALPHA

    @property
    def confidence(self) -> float:
        """Of each of its bounds."""
        return CONFIDENCE

    def share(self, counted: int) -> str:
        """A count as percent of the runs."""
        return f"{counted / self.runs * 100:.2f} %"

    @property
    def mean_pairs(self) -> str:
        """Pairs that a run took in the mean."""
        return f"{self.pairs / self.runs:.1f}"

    @property
    def undecided(self) -> str:
        """Share of the runs that ended inconclusive."""
        return self.share(self.runs - self.blocked - self.passed)


CLAIMS = len(GATES) * sum(place.part == "claims" and place.case != "no change" for place in PLACES)
CONFIDENCE = 1 - 0.01 / CLAIMS
"""Of each bound, so that all of them hold together with 99 % (Bonferroni)."""
