"""The rules of other gates on the same resampled pairs: what each blocks of one build, and what it lets pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfgate.drill.peer_rules import PEERS, PeerRule
from perfgate.drill.recordings import STEP
from perfgate.drill.replay import ErrorKind, Replay, Share, Truth
from perfgate.models import Frozen
from perfgate.stats.estimate import Floats
from perfgate.stats.sequential import PASS, REGRESSED

RESAMPLED = 200  # draws for rules that resample themselves


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
    plan = next(plan for plan in replay.gates if plan.gate.measured.name == STEP)
    ignorable, must_catch = replay.margins(plan)
    sizes: dict[float, ErrorKind] = {
        0.0: "false-blocks", ignorable: "false-blocks", must_catch: "false-passes", 4 * must_catch: "false-passes",
    }  # fmt: skip
    given = _Given(replay)
    rows = [_row(given, rule, sizes, np.random.default_rng([seed, n])) for n, rule in enumerate(rules)]
    return (*rows, _own_row(replay, sizes))


@dataclass(frozen=True)
class _Given:
    """What a replay has for the rules: the steps of its trials, (draws, pairs, iterations), one where one is kept."""

    replay: Replay
    whole: bool = field(init=False)
    sides: tuple[Floats, Floats] = field(init=False)

    def __post_init__(self) -> None:
        pool, drawn = self.replay.pool, self.replay.drawn
        iterations = pool.iterations(drawn)
        base, head = pool.sides(STEP, drawn)
        object.__setattr__(self, "whole", iterations is not None)
        object.__setattr__(self, "sides", iterations or (base[..., None], head[..., None]))

    def of(self, rule: PeerRule, rng: np.random.Generator) -> tuple[Floats, Floats] | None:
        """What one rule is given; ``None`` where the recordings do not have it."""
        if rule.pools and not self.whole:
            return None
        base, head = self.sides
        if rule.stored:
            stored = self.replay.pool.elsewhere(rng, self.replay.drawn, rule.base)
            if stored is None:
                return None
            base = self.replay.pool.sides(STEP, stored)[0][..., None]
        draws = RESAMPLED if rule.resamples else len(head)
        return base[:draws, : rule.base, : rule.iterations], head[:draws, : rule.head, : rule.iterations]


def _row(given: _Given, rule: PeerRule, sizes: Mapping[float, ErrorKind], rng: np.random.Generator) -> PeerRow:
    blank = PeerRow(rule=rule.name, given=rule.plan, source=rule.source)
    sides = given.of(rule, rng)
    if sides is None:
        return blank
    base, head = sides
    recorded = head.shape[2]
    fewer = f"; {recorded} recorded" if rule.pools and recorded < rule.iterations else ""
    again = "; drawn from the other visits" if rule.stored and rule.base > 1 else ""
    blank = blank.model_copy(update={"given": f"{rule.plan}{fewer}{again}"})
    starts = head.shape[1] + (0 if rule.stored else base.shape[1])
    cases = []
    for size, error in sizes.items():
        codes = rule.decide(base, head * (1 + size), rng)
        blocked, passed = (Share.counted(int((codes == code).sum()), len(codes)) for code in (REGRESSED, PASS))
        cases.append(PeerCase(size=size, error=error, blocked=blocked, passed=passed, starts=starts))
    return blank.model_copy(update={"cases": tuple(cases)})


def _own_row(replay: Replay, sizes: Mapping[float, ErrorKind]) -> PeerRow:
    """Ours: each pair is two starts, and a warm-up trial a side comes before the first."""
    cases = []
    for size, error in sizes.items():
        row = replay.row(Truth(STEP, {STEP: size}, STEP))
        starts = 2 * (row.pairs + 1)
        cases.append(PeerCase(size=size, error=error, blocked=row.regressed, passed=row.passed, starts=starts))
    looks = replay.declared.schedule.looks
    given = f"pairs in random order, {looks[0]} to {looks[-1]}"
    return PeerRow(rule=f"perfgate, {replay.declared.name}", given=given, cases=tuple(cases))
