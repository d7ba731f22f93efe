"""Counters judged and told: conditions of the ``counters:`` block, kernels beside each other, a sentence for a role.

A condition is exact: it holds or it does not, nothing is estimated, and nothing of alpha is spent. Counters that repeat
tightly may be gated by margins instead (:data:`perfgate.metrics.catalogue.COUNTER_METRICS`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfgate.counters.launch_table import COUNTERS, KernelLaunch, LaunchGroup, grouped
from perfgate.counters.roofline import kernel_roof
from perfgate.counters.step_counters import CountedStep
from perfgate.judge.outcome import CounterRow, CountersOutcome, Verdict, worst
from perfgate.metrics.trial import Role
from perfgate.models import Note
from perfgate.scenario.counter_trials import SAME, Condition, Launches
from perfgate.trace.decode_step import KernelKey
from perfgate.trace.families import short_name

SAME_BYTES = 0.003
"""A role whose DRAM bytes change by less is told to move the same bytes: repeats differ by as much."""
TOLD = {"dram_throughput": 5.0, "sm_throughput": 5.0, "occupancy": 5.0, "l2_hit_rate": 10.0, "tensor_pipe": 5.0}
"""Points of percent that a noisy share must move by to be told, beyond what repeats show (docs/counters.md)."""
TOLD_RATIO = {"stall_long_scoreboard": 0.4, "stall_math_throttle": 0.4, "instructions": 0.01, "bank_conflicts": 0.4}
"""The same for counts, as a share of the base's."""
LEAST_STALL = 0.5
"""Stalls below this are none, whatever their ratio."""
WORDS = {"dram_throughput": "DRAM throughput", "sm_throughput": "SM throughput", "occupancy": "occupancy",
         "l2_hit_rate": "L2 hit rate", "tensor_pipe": "tensor pipe", "stall_long_scoreboard": "long-scoreboard stalls",
         "stall_math_throttle": "math-throttle stalls", "instructions": "instructions",
         "bank_conflicts": "bank conflicts"}  # fmt: skip


def judge_counters(
    launches: Sequence[Launches], base: Sequence[CountedStep] | None, head: Sequence[CountedStep]
) -> CountersOutcome:
    """Hold the head's counters against the conditions and against the base's.

    Args:
        launches: The scenario's ``counters:`` block.
        base: What each valid counted trial of the base holds; ``None`` where no base was counted beside the head:
            bounds hold or not, and what must be the ``same`` as on the base cannot be told, which is a caution.
        head: The head's.
    """
    given = {"head": head} if base is None else {"base": base, "head": head}
    missing = [role for role, steps in given.items() if not steps]
    if missing:
        reason = Note(code="counters-no-kernel", text=f"no counted trial of {' and '.join(missing)}")
        return CountersOutcome(verdict="not-measured", reasons=(reason,))
    sides = [*given.values()]
    conditions = [(one, name, condition) for one in launches for name, condition in one.metrics.items()]
    unheld = [f"{one}: {name}" for one, name, condition in conditions if base is None and condition.relation == SAME]
    found = [_condition(*one, sides) for one in conditions if base is not None or one[2].relation != SAME]
    broken = [pair for pair in found if pair is not None]
    said = dict.fromkeys(caution for steps in given.values() for step in steps for caution in step.cautions)
    cautions = [Note(code=code, text=text) for code, text in said]
    if unheld:
        cautions.append(Note(code="counter-without-base", text=f"not held: {', '.join(unheld)}"))
    both = base or (), sides[-1]
    return CountersOutcome(
        verdict=worst([verdict for verdict, _ in broken] or ["pass"]),
        rows=tuple(_rows(*both)),
        sentences=dict(_sentences(*both)),
        reasons=tuple(note for _, note in broken),
        cautions=tuple(cautions),
    )


def count_one_side(steps: Sequence[CountedStep]) -> CountersOutcome:
    """The kernels of one side, for reading."""
    return CountersOutcome(verdict="pass", rows=tuple(_rows(steps, ())))


_Steps = Sequence[CountedStep]
"""What each valid counted trial of a side holds."""


def _condition(one: Launches, name: str, condition: Condition, sides: Sequence[_Steps]) -> tuple[Verdict, Note] | None:
    """What a broken condition means on the base and the head, or the head alone; ``None`` where it holds."""
    what = f"{one}: {name}"
    read = [[_values(step, one, name) for step in side] for side in sides]
    if not all(trial for side in read for trial in side) or None in (v for s in read for t in s for _, v in t):
        return "not-measured", Note(code="counters-missing", text=f"{what} was not read on every launch and trial")
    if condition.relation == SAME:
        return _same(what, *([_by_kernel(trial) for trial in side] for side in read))
    medians = [statistics.median(value for trial in side for _, value in trial if value is not None) for side in read]
    *before, shown = [f"{median:.6g}" for median in medians]
    if before and not condition.holds(medians[0]):
        text = f"{what} of base is {before[0]}, not {condition}"
        return "not-comparable", Note(code="counter-bound-stale", text=text)
    if not condition.holds(medians[-1]):
        beside = f" (base {before[0]})" if before else ""
        return "regressed", Note(code="counter-out-of-bounds", text=f"{what} is {shown}{beside}, not {condition}")
    return None


Kernels = dict[tuple[str, str], set[float]]
"""What each kernel of a trial read, by role and place; launches of one kernel may differ among themselves."""


def _same(what: str, base: Sequence[Kernels], head: Sequence[Kernels]) -> tuple[Verdict, Note] | None:
    """Hold kernels that both sides ran against each other, whatever their names: a build may choose another one.

    A kernel at a place that one side's window does not hold says nothing of the other's; which launches a step has is
    the envelope's matter.
    """
    unstable = [trial for trial in base if trial != base[0]]
    if unstable:
        text = f"{what} of base is {_list(base[0])} in one trial and {_list(unstable[0])} in another"
        return "inconclusive", Note(code="counter-unstable", text=text)
    for trial in head:
        both = base[0].keys() & trial.keys()
        if not both:
            return "not-measured", Note(code="counters-missing", text=f"{what}: no kernel was counted on both sides")
        other = {key: trial[key] for key in sorted(both) if trial[key] != base[0][key]}
        if other:
            text = f"{what} is {_list(other)}, not {_list({key: base[0][key] for key in other})} as on the base"
            return "regressed", Note(code="counter-differs", text=text)
    return None


def _by_kernel(trial: Sequence[tuple[KernelKey, float | None]]) -> Kernels:
    found: Kernels = {}
    for key, value in trial:
        if value is not None:
            found.setdefault((key.role, key.place), set()).add(value)
    return found


def _list(kernels: Kernels) -> str:
    several = len(kernels) > 1
    return "; ".join(
        (f"{' '.join(filter(None, key))} " if several else "") + " and ".join(f"{v:.10g}" for v in sorted(values))
        for key, values in sorted(kernels.items())
    )


def _values(step: CountedStep, one: Launches, name: str) -> list[tuple[KernelKey, float | None]]:
    """What a trial's launches read, those that the entry means; ``None`` for one that lacks it."""
    chosen = [launch for launch in step.launches if one.includes(launch.key, launch.layer)]
    return [(launch.key, launch.read(name) if name in COUNTERS else launch.values.get(name)) for launch in chosen]


def _launches(side: _Steps) -> list[KernelLaunch]:
    return [launch for step in side for launch in step.launches]


def _rows(base: _Steps, head: _Steps) -> Iterator[CounterRow]:
    sides: dict[Role, dict[KernelKey, LaunchGroup]] = {
        "base": grouped((launch.key, launch) for launch in _launches(base)),
        "head": grouped((launch.key, launch) for launch in _launches(head)),
    }
    for key in dict.fromkeys([*sides["base"], *sides["head"]]):
        there: dict[Role, LaunchGroup] = {role: found[key] for role, found in sides.items() if key in found}
        roofs = {role: kernel_roof(group.median) for role, group in there.items()}
        means = {role: {name: statistics.fmean(v) for name in COUNTERS if (v := group.read(name))}
                 for role, group in there.items()}  # fmt: skip
        yield CounterRow(
            role=key.role,
            place=key.place,
            kernel=short_name(key.name),
            launches={role: len(group.launches) for role, group in there.items()},
            base=means.get("base", {}),
            head=means.get("head", {}),
            bound={role: roof.bound for role, roof in roofs.items()},
            distance={role: roof.distance for role, roof in roofs.items()},
        )


@dataclass(frozen=True)
class _Moved:
    """A role, or a place of it, on both sides, one figure a counter."""

    name: str
    base: Mapping[str, float]
    head: Mapping[str, float]

    def ratio(self, name: str) -> float | None:
        """Head over base minus one; ``None`` where there is none."""
        base, head = self.base.get(name), self.head.get(name)
        return None if base is None or head is None or base <= 0 else head / base - 1


def _sentences(base: _Steps, head: _Steps) -> Iterator[tuple[str, str]]:
    """A clause for each role that both sides run, and for each place of it, those whose bytes moved most first."""
    keys = dict.fromkeys(launch.key for launch in _launches(base))
    parts = dict.fromkeys((key.role, place) for key in keys for place in ("", key.place))
    moved = [_Moved(" ".join(filter(None, part)), *(_of_part(side, *part) for side in (base, head))) for part in parts]
    for part, one in sorted(zip(parts, moved, strict=True), key=lambda pair: -abs(pair[1].ratio("dram_bytes") or 0.0)):
        clauses = list(_clauses(one)) if one.base and one.head else []
        if clauses:
            yield "/".join(filter(None, part)), f"{one.name}: {', '.join(clauses)}"


def _of_part(side: _Steps, role: str, place: str) -> dict[str, float]:
    """Each counter as the mean of a launch, shares and ratios weighted by the launch's time."""
    own = [launch for step in side for launch in step.of(role, place).launches]
    times = [launch.read("duration") or 0.0 for launch in own]
    found: dict[str, float] = {}
    for name, counter in COUNTERS.items():
        known = [(v, t) for k, t in zip(own, times, strict=True) if (v := counter.read(k)) is not None]
        if not known:
            continue
        weighted = counter.tier == "noisy" and sum(t for _, t in known) > 0
        weights = [t if weighted else 1.0 for _, t in known]
        found[name] = sum(v * w for (v, _), w in zip(known, weights, strict=True)) / sum(weights)
    return found


def _clauses(one: _Moved) -> Iterator[str]:
    change = one.ratio("dram_bytes")
    if change is not None:
        yield "same bytes" if abs(change) < SAME_BYTES else f"{change * 100:+.1f} % bytes"
    for name, least in TOLD.items():
        base, head = one.base.get(name), one.head.get(name)
        if base is not None and head is not None and abs(head - base) >= least:
            yield f"{WORDS[name]} {base:.0f} to {head:.0f} %"
    for name, least in TOLD_RATIO.items():
        ratio = one.ratio(name)
        stalls = name.startswith("stall_") and max(one.base.get(name, 0.0), one.head.get(name, 0.0)) < LEAST_STALL
        if ratio is not None and abs(ratio) >= least and not stalls:
            yield f"{WORDS[name]} {'up' if ratio > 0 else 'down'} {abs(ratio) * 100:.0f} %"
    base_registers, registers = one.base.get("registers"), one.head.get("registers")
    if base_registers is not None and registers is not None and base_registers != registers:
        yield f"registers {base_registers:.0f} to {registers:.0f}"
