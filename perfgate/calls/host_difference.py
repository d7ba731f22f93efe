"""In which functions the head's host takes longer in a decode step, or less long, by samples of both sides."""

from __future__ import annotations

import math
import operator
from typing import Annotated

from pydantic import Field

from perfgate.calls.call_difference import moved_functions
from perfgate.calls.host_profile import FunctionTime, HostProfile
from perfgate.calls.import_times import HostImports
from perfgate.metrics.sides import Side
from perfgate.models import Frozen

SURE = 4.5
"""Standard errors of sampling by which a function must differ: of 600 functions chance alone has one do so in less than
a hundredth of the comparisons."""
ALIKE = 0.15
"""Standard deviation of what a function takes in two engines of one build, as a share, beyond that of sampling: memory
has another layout (docs/measurements.md)."""


class HostFunction(Frozen):
    """A function in which the sides' hosts differ.

    Args:
        function: Module and qualified name.
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
    before = {moved.get(name, name): (name, own) for name, own in base.functions.items()}
    changes = []
    for name in sorted(before.keys() | head.functions.keys()):
        old, own = before.get(name, (name, FunctionTime()))
        now = head.functions.get(name, FunctionTime())
        change = HostFunction(
            function=name,
            base_s=own.work_ns / base.steps * 1e-9,
            head_s=now.work_ns / head.steps * 1e-9,
            was=old if old != name else "",
        )
        errors = (_errors(_work_s(own, base), _work_s(now, head)), _errors(_ticks_s(own, base), _ticks_s(now, head)))
        if max(error if change.more_s > 0 else -error for error in errors) > SURE:
            changes.append(change)
    return sorted(changes, key=lambda change: (-abs(change.more_s), change.function))


_Figure = tuple[float, float]
"""A step's mean, and its standard error."""


def _work_s(own: FunctionTime, profile: HostProfile) -> _Figure:
    """Work, as if there were one sample more."""
    return own.work_ns / profile.steps * 1e-9, math.hypot(own.spread_ns, profile.period_ns) / profile.steps * 1e-9


def _ticks_s(own: FunctionTime, profile: HostProfile) -> _Figure:
    """As if each sample were a tick of work."""
    tick_s = profile.period_ns / profile.steps * 1e-9
    return own.samples * tick_s, math.sqrt(own.samples + 1) * tick_s


def _errors(base: _Figure, head: _Figure) -> float:
    """By how many standard errors the head has more."""
    return (head[0] - base[0]) / math.hypot(base[1], head[1], ALIKE * (base[0] + head[0]) / 2)
