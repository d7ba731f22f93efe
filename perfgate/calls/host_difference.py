"""Where the host's time goes: the functions in which the sides differ, by samples, and what they import."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from perfgate.calls.call_difference import moved_functions
from perfgate.calls.host_profile import FIGURES, FunctionTime, HostProfile
from perfgate.metrics.sides import Side
from perfgate.models import Frozen
from perfgate.units import plural

if TYPE_CHECKING:
    from perfgate.judge.evidence import Evidence

SURE = 4.5
"""Standard errors of sampling by which a function must differ: of 600 functions chance alone has one do so in less than
a hundredth of the comparisons."""
ALIKE = 0.15
"""Standard deviation of what a function takes in two engines of one build, as a share, beyond that of sampling: memory
has another layout (docs/measurements.md)."""
MOST_FUNCTIONS, MOST_PACKAGES = 20, 10
MOST_CPUS, MOST_THREADS = 8, 6
"""That are named."""


class HostFunction(Frozen):
    """A function in which the sides' hosts differ.

    Args:
        base_s: What the base's thread works in it itself, a decode step.
        head_s: The same of the head.
        was: The base's name of it, where it has another class or module there; else not written.
    """

    function: str
    base_s: float
    head_s: float
    was: Annotated[str, Field(exclude_if=operator.not_)] = ""

    @property
    def more_s(self) -> float:
        """What the head's takes longer."""
        return self.head_s - self.base_s


class HostImports(Frozen):
    """A package of which the sides import another number of modules.

    Args:
        package: The first two parts of its modules' names.
        modules: Of base and head.
        spent_s: What importing them takes, of base and head; it differs with every start.
    """

    package: str
    modules: tuple[int, int]
    spent_s: tuple[float, float]


class HostOutcome(Frozen):
    """Where the time of the engine's own thread goes in a decode step; judged by nothing.

    Args:
        steps: Sampled decode steps of each side.
        figures: Means of a step by name (:data:`perfgate.calls.host_profile.FIGURES`) and side.
        placement: On which CPUs each side's thread ran, beside which others, in words.
        functions: Those that differ, the largest difference first.
        imported: How many modules each side imports, and what that takes in seconds.
        imports: Packages that differ, those first that take longest.
    """

    steps: dict[Side, int]
    figures: dict[str, dict[Side, float]]
    placement: dict[Side, str]
    functions: tuple[HostFunction, ...] = ()
    imported: dict[Side, tuple[int, float]] = {}
    imports: tuple[HostImports, ...] = ()


def changed_functions(base: HostProfile, head: HostProfile) -> list[HostFunction]:
    """The functions in which the sides' own work differs, the largest difference first.

    Own work, because more of it in a function is more in all that call it. A difference must be more than :data:`SURE`
    times the spread of both sides and of engines of one build, in work or in the number of samples: where other
    programs, or other machines of the same processor, take the CPU away, a few samples seem to be much work.
    """
    moved = moved_functions(base.functions, head.functions)
    before = {moved.get(name, name): (name, function) for name, function in base.functions.items()}
    changes = []
    for name in sorted(before.keys() | head.functions.keys()):
        old, was = before.get(name, (name, FunctionTime()))
        now = head.functions.get(name, FunctionTime())
        change = HostFunction(
            function=name,
            base_s=was.work_ns / base.steps * 1e-9,
            head_s=now.work_ns / head.steps * 1e-9,
            was=old if old != name else "",
        )
        errors = (_errors(_work_s(was, base), _work_s(now, head)), _errors(_ticks_s(was, base), _ticks_s(now, head)))
        if max(error if change.more_s > 0 else -error for error in errors) > SURE:
            changes.append(change)
    return sorted(changes, key=lambda change: (-abs(change.more_s), change.function))


_Figure = tuple[float, float]
"""A step's mean, and its standard error."""


def _work_s(spent: FunctionTime, profile: HostProfile) -> _Figure:
    """Work, as if there were one sample more."""
    return spent.work_ns / profile.steps * 1e-9, math.hypot(spent.spread_ns, profile.period_ns) / profile.steps * 1e-9


def _ticks_s(spent: FunctionTime, profile: HostProfile) -> _Figure:
    """As if each sample were a tick of work."""
    tick_s = profile.period_ns / profile.steps * 1e-9
    return spent.samples * tick_s, math.sqrt(spent.samples + 1) * tick_s


def _errors(base: _Figure, head: _Figure) -> float:
    """By how many standard errors the head has more."""
    return (head[0] - base[0]) / math.hypot(base[1], head[1], ALIKE * (base[0] + head[0]) / 2)


def changed_imports(base: Mapping[str, tuple[int, int]], head: Mapping[str, tuple[int, int]]) -> list[HostImports]:
    """The packages that differ, those first that take longest on either side; times alone differ with every start."""
    changes = []
    for package in sorted(base.keys() | head.keys()):
        (before, before_us), (after, after_us) = base.get(package, (0, 0)), head.get(package, (0, 0))
        if before != after:
            spent_s = (before_us * 1e-6, after_us * 1e-6)
            changes.append(HostImports(package=package, modules=(before, after), spent_s=spent_s))
    return sorted(changes, key=lambda change: (-max(change.spent_s), change.package))


def host_of(evidence: Evidence) -> HostOutcome | None:
    """The same of a cell's sampled trials; ``None`` where there are none."""
    return host_outcome(evidence.held("host"))


def host_outcome(sides: Mapping[Side, Sequence[HostProfile]]) -> HostOutcome | None:
    """What the sampled trials of each side show; of several the last one is taken.

    Args:
        sides: The profiles of each side that was measured, in the order of time.

    Returns:
        ``None`` where no side has one; without functions where one side has none.
    """
    profiles = {side: trials[-1] for side, trials in sides.items() if trials}
    if not profiles:
        return None
    both = len(profiles) > 1
    changes = changed_functions(profiles["base"], profiles["head"]) if both else []
    imports = changed_imports(profiles["base"].imports, profiles["head"].imports) if both else []
    return HostOutcome(
        steps={side: profile.steps for side, profile in profiles.items()},
        figures={name: {side: profile.mean(name) for side, profile in profiles.items()} for name in FIGURES},
        placement={side: _placement(profile) for side, profile in profiles.items()},
        functions=tuple(changes[:MOST_FUNCTIONS]),
        imported={side: _imported(profile) for side, profile in profiles.items()},
        imports=tuple(imports[:MOST_PACKAGES]),
    )


def _imported(profile: HostProfile) -> tuple[int, float]:
    modules, spent_us = zip(*profile.imports.values(), strict=True) if profile.imports else ((), ())
    return sum(modules), sum(spent_us) * 1e-6


def _placement(profile: HostProfile) -> str:
    cpus = ", ".join(map(str, profile.cpus[:MOST_CPUS])) + (" and more" if len(profile.cpus) > MOST_CPUS else "")
    most = sorted(profile.threads.items(), key=lambda thread: (-thread[1][0], thread[0]))
    named = [
        f"{many} {name}{f' (held to {fewest})' if fewest < profile.allowed else ''}" for name, (many, fewest) in most
    ]
    others = ", ".join(named[:MOST_THREADS]) + (" and others" if len(named) > MOST_THREADS else "")
    return f"on CPU {cpus} of {plural(profile.allowed, 'CPU')} allowed; threads: {others}"
