"""Counters judged and told: conditions of the ``counters:`` block, kernels beside each other, a sentence for a role.

A condition is exact: it holds or it does not, nothing is estimated, and nothing of alpha is spent. Counters that repeat
tightly may be gated by margins instead (:data:`perfgate.kernels.step_metrics.COUNTER_METRICS`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from perfgate.counters.launch_table import COUNTERS, KernelLaunch, grouped
from perfgate.counters.roofline import kernel_roof
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import Verdict
from perfgate.judge.cautions import TrialsBySide
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import Finding, worst
from perfgate.kernels.launch_window import includes
from perfgate.kernels.outcomes import CounterRow, CountersOutcome
from perfgate.metrics.catalogue import Metric, split_name
from perfgate.metrics.sides import Side
from perfgate.models import Note
from perfgate.scenario.counter_trials import SAME, Condition, Launches
from perfgate.trace.decode_step import KernelKey
from perfgate.trace.families import short_name

SAME_BYTES = 0.003
"""A role whose DRAM bytes change by less is told to move the same bytes: repeats differ by as much."""
TOLD = {
    "dram_throughput": ("DRAM throughput", 5.0), "sm_throughput": ("SM throughput", 5.0),
    "occupancy": ("occupancy", 5.0), "l2_hit_rate": ("L2 hit rate", 10.0), "tensor_pipe": ("tensor pipe", 5.0),
}  # fmt: skip
"""Noisy shares in words, with the points of percent that each must move by to be told, beyond what repeats show
(docs/counters.md)."""
TOLD_RATIO = {
    "stall_long_scoreboard": ("long-scoreboard stalls", 0.4), "stall_math_throttle": ("math-throttle stalls", 0.4),
    "instructions": ("instructions", 0.01), "bank_conflicts": ("bank conflicts", 0.4),
}  # fmt: skip
"""The same for counts, as a share of the base's."""
LEAST_STALL = 0.5
"""Stalls below this are none, whatever their ratio."""


def judge_counted(evidence: Evidence) -> Iterator[Finding]:
    """What is judged of the counted trials of a cell."""
    counted = judge_counters(evidence.cell.counters, evidence.held("counted"))
    yield Finding(counted.verdict, counted.reasons, counted.cautions, {"counters": counted})


def judge_counters(launches: Sequence[Launches], sides: Mapping[Side, Sequence[CountedStep]]) -> CountersOutcome:
    """Hold the head's counters against the conditions and against the base's.

    Args:
        launches: The scenario's ``counters:`` block.
        sides: What each valid counted trial of base and head holds; of the head alone where no base was counted beside
            it: bounds hold or not, and what must be the ``same`` as on the base cannot be told, which is a caution.
    """
    missing = [side for side, steps in sides.items() if not steps]
    if missing:
        reason = Note(code="counters-missing", text=f"no counted trial of {' and '.join(missing)}")
        return CountersOutcome(verdict="not-measured", reasons=(reason,))
    trials = [*sides.values()]
    conditions = [(entry, name, condition) for entry in launches for name, condition in entry.metrics.items()]
    unheld = [condition for condition in conditions if "base" not in sides and condition[2].relation == SAME]
    results = (_condition(*condition, trials) for condition in conditions if condition not in unheld)
    broken = [pair for pair in results if pair is not None]
    texts = dict.fromkeys(caution for steps in trials for step in steps for caution in step.cautions)
    cautions = [Note(code=code, text=text) for code, text in texts]
    if unheld:
        names = ", ".join(f"{entry}: {name}" for entry, name, _ in unheld)
        cautions.append(Note(code="no-profile", text=f"no base was counted, so these are not held: {names}"))
    return CountersOutcome(
        verdict=worst([verdict for verdict, _ in broken] or ["pass"]),
        rows=tuple(_rows(sides)),
        sentences=dict(_sentences(sides.get("base", ()), sides["head"])),
        reasons=tuple(note for _, note in broken),
        cautions=tuple(cautions),
    )


def count_one_side(evidence: Evidence) -> Iterator[Finding]:
    """The kernels of the only side there is, for reading; nothing where none were counted."""
    if steps := [*chain(*evidence.held("counted").values())]:
        yield Finding(shown={"counters": CountersOutcome(verdict="pass", rows=tuple(_rows({"base": steps})))})


def launches_differ(metric: Metric, sides: TrialsBySide) -> Note | None:
    """Says so where the sides' trials hold another number of launches of what a counter is gated on.

    The mean of a launch then compares other things: work that is split over two launches halves it.
    """
    if len(sides) < 2:  # noqa: PLR2004 (base and head)
        return None
    role, _, place = (split_name(metric.name)[1] or "").partition("/")
    counts = [{len(t.counted.of(role, place).launches) for t in trials if t.counted} for trials in sides.values()]
    if counts[0] == counts[1] and len(counts[0]) <= 1:
        return None
    shown = [" or ".join(map(str, sorted(launches))) or "none" for launches in counts]
    text = f"launches of {role} {place}".rstrip() + f" in a trial's window: base {shown[0]}, head {shown[1]}"
    return Note(code="metric-unusable", text=text)


_Steps = Sequence[CountedStep]
"""What each valid counted trial of a side holds."""


def _condition(
    entry: Launches, name: str, condition: Condition, sides: Sequence[_Steps]
) -> tuple[Verdict, Note] | None:
    """What a broken condition means on the base and the head, or the head alone; ``None`` where it holds."""
    what = f"{entry}: {name}"
    read = [[_values(step, entry, name) for step in side] for side in sides]
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
        return "inconclusive", Note(code="counts-vary", text=text)
    for trial in head:
        both = base[0].keys() & trial.keys()
        if not both:
            return "not-measured", Note(code="counters-missing", text=f"{what}: no kernel was counted on both sides")
        differing = {key: trial[key] for key in sorted(both) if trial[key] != base[0][key]}
        if differing:
            text = f"{what} is {_list(differing)}, not {_list({key: base[0][key] for key in differing})} as on the base"
            return "regressed", Note(code="counter-differs", text=text)
    return None


def _by_kernel(trial: Sequence[tuple[KernelKey, float | None]]) -> Kernels:
    kernels: Kernels = {}
    for key, value in trial:
        if value is not None:
            kernels.setdefault((key.role, key.place), set()).add(value)
    return kernels


def _list(kernels: Kernels) -> str:
    several = len(kernels) > 1
    return "; ".join(
        (f"{' '.join(filter(None, key))} " if several else "") + " and ".join(f"{v:.10g}" for v in sorted(values))
        for key, values in sorted(kernels.items())
    )


def _values(step: CountedStep, entry: Launches, name: str) -> list[tuple[KernelKey, float | None]]:
    """What a trial's launches read, those that the entry means; ``None`` for one that lacks it."""
    chosen = [launch for launch in step.launches if includes(entry, launch.key, launch.layer)]
    return [(launch.key, launch.read(name) if name in COUNTERS else launch.values.get(name)) for launch in chosen]


def _launches(steps: _Steps) -> list[KernelLaunch]:
    return [launch for step in steps for launch in step.launches]


def _rows(sides: Mapping[Side, _Steps]) -> Iterator[CounterRow]:
    groups = {side: grouped((launch.key, launch) for launch in _launches(steps)) for side, steps in sides.items()}
    for key in dict.fromkeys(chain(*groups.values())):
        there = {side: by_key[key] for side, by_key in groups.items() if key in by_key}
        roofs = {side: kernel_roof(group.median) for side, group in there.items()}
        means = {side: {name: statistics.fmean(v) for name in COUNTERS if (v := group.read(name))}
                 for side, group in there.items()}  # fmt: skip
        yield CounterRow(
            role=key.role,
            place=key.place,
            kernel=short_name(key.name),
            launches={side: len(group.launches) for side, group in there.items()},
            base=means.get("base", {}),
            head=means.get("head", {}),
            bound={side: roof.bound for side, roof in roofs.items()},
            distance={side: roof.distance for side, roof in roofs.items()},
        )


def _sentences(base: _Steps, head: _Steps) -> Iterator[tuple[str, str]]:
    """A clause for each role that both sides run, and for each place of it, those whose bytes moved most first."""
    keys = dict.fromkeys(launch.key for launch in _launches(base))
    parts = dict.fromkeys((key.role, place) for key in keys for place in ("", key.place))
    means = {tuple(filter(None, part)): (_of_part(base, *part), _of_part(head, *part)) for part in parts}
    for part, sides in sorted(means.items(), key=lambda item: -abs(_change("dram_bytes", *item[1]) or 0.0)):
        if all(sides) and (clauses := ", ".join(_clauses(*sides))):
            yield "/".join(part), f"{' '.join(part)}: {clauses}"


_Means = Mapping[str, float]
"""One figure a counter."""


def _change(name: str, base: _Means, head: _Means) -> float | None:
    """Head over base minus one; ``None`` where there is none."""
    return head[name] / base[name] - 1 if name in head and base.get(name, 0.0) > 0 else None


def _of_part(steps: _Steps, role: str, place: str) -> dict[str, float]:
    """Each counter as the mean of a launch, shares and ratios weighted by the launch's time."""
    launches = [launch for step in steps for launch in step.of(role, place).launches]
    times = [launch.read("duration") or 0.0 for launch in launches]
    means: dict[str, float] = {}
    for name, counter in COUNTERS.items():
        readings = [(v, t) for k, t in zip(launches, times, strict=True) if (v := counter.read(k)) is not None]
        if not readings:
            continue
        weighted = counter.tier == "noisy" and sum(t for _, t in readings) > 0
        weights = [t if weighted else 1.0 for _, t in readings]
        means[name] = sum(v * w for (v, _), w in zip(readings, weights, strict=True)) / sum(weights)
    return means


def _clauses(base: _Means, head: _Means) -> Iterator[str]:
    change = _change("dram_bytes", base, head)
    if change is not None:
        yield "same bytes" if abs(change) < SAME_BYTES else f"{change * 100:+.1f} % bytes"
    for name, (label, least) in TOLD.items():
        if name in base and name in head and abs(head[name] - base[name]) >= least:
            yield f"{label} {base[name]:.0f} to {head[name]:.0f} %"
    for name, (label, least) in TOLD_RATIO.items():
        change = _change(name, base, head)
        negligible = name.startswith("stall_") and max(base.get(name, 0.0), head.get(name, 0.0)) < LEAST_STALL
        if change is not None and abs(change) >= least and not negligible:
            yield f"{label} {'up' if change > 0 else 'down'} {abs(change) * 100:.0f} %"
    registers = [side["registers"] for side in (base, head) if "registers" in side]
    if len(set(registers)) > 1:
        yield "registers {:.0f} to {:.0f}".format(*registers)
