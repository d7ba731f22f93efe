"""The functions that the host ran in the steps of one trial, by kind of step: how often, how many lines, which C calls.

What a build's host does repeats exactly, whatever time it takes: engines of one build with other hash seeds and
addresses run the same functions equally often (docs/measurements.md). What depends on time or chance does not: a log
line every ten seconds, a loop over the buckets of a histogram of times. So each count has a range, the least and the
most that an iteration showed, and what has not repeated is known by its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_args

import numpy as np
from annotated_types import MinLen
from pydantic import AfterValidator, FailFast, Field, PositiveInt, model_validator

from perfgate.machine.json_text import LARGEST_INTEGER
from perfgate.models import Frozen

if TYPE_CHECKING:
    from perfgate.metrics.trial import Trial

StepKind = Literal["decode", "prefill"]
"""Kinds of step that are counted apart. A prefill step is a return of the engine until every request has its first
token, a decode step a return with tokens after that."""
STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
OF_DECODE_STEPS = ("step_calls", "functions")
"""Fields of files that held decode steps alone."""
CALLS, LINES = "calls", "lines"
"""What is counted of a function, beside the C functions that it calls, which go by their names."""
PS_PER_S = 1e12
Count = Annotated[int, Field(ge=0, lt=LARGEST_INTEGER)]


def _in_order(total: tuple[int, int]) -> tuple[int, int]:
    if total[0] > total[1]:
        raise ValueError(f"expected the least before the most, not {total[0]} and {total[1]}")
    return total


Total = Annotated[tuple[Count, Count], AfterValidator(_in_order)]
"""The least and the most over the counted iterations of what all steps of a kind did in one."""
Cost = Annotated[int, Field(gt=0, lt=LARGEST_INTEGER)]
Name = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
"""On one line: a function may have any name, and a report shows it."""


class Costs(Frozen):
    """What a unit of the host's work costs at least, in picoseconds, measured before anything is counted.

    Args:
        call: A call of a Python function, beside its lines.
        c_call: A call of a C function that does next to nothing.
    """

    line: Cost
    call: Cost
    c_call: Cost


class FunctionCalls(Frozen):
    """One Python function in the steps of a kind.

    Args:
        calls: How often it was called, or went on where it is a generator.
        lines: Lines begun in it, and jumps back within a line: loops show here, and ``d[k] = v``.
        c_calls: Calls of C functions by their name.
        c_ps: What one of these took, in picoseconds, where it called no Python function.
    """

    calls: Total = (0, 0)
    lines: Total = (0, 0)
    c_calls: dict[Name, Total] = {}
    c_ps: dict[Name, Count] = {}

    def counts(self) -> Iterator[tuple[str, Total]]:
        """Everything that was counted, by its name."""
        yield from ((CALLS, self.calls), (LINES, self.lines))
        yield from self.c_calls.items()


class StepCalls(Frozen):
    """What the host ran in the steps of one kind, over the counted iterations.

    Args:
        calls: Of each step in order the calls of Python and C functions.
        functions: By module and qualified name.
    """

    calls: Annotated[tuple[Count, ...], MinLen(1), FailFast()]
    functions: Annotated[dict[Name, FunctionCalls], MinLen(1)]

    def counts(self) -> dict[tuple[str, str], Total]:
        """Every count, by function and what is counted of it."""
        return {(name, what): total for name, function in self.functions.items() for what, total in function.counts()}

    def varying(self) -> dict[tuple[str, str], Total]:
        """The counts that did not repeat."""
        return {key: total for key, total in self.counts().items() if total[0] < total[1]}

    @property
    def varying_share(self) -> float:
        """The share of all events that did not repeat."""
        totals = self.counts().values()
        return sum(most - least for least, most in totals) / max(sum(most for _, most in totals), 1)


MODULES: Final = "modules"
"""How the names of figures begin that count modules, in all and of a package."""
OF_THE_MACHINE: Final = ("instructions ", "system calls ")
"""How those begin that another processor or kernel changes, and that are mostly read by root alone."""


class HostCalls(Frozen):
    """What the host ran in the steps of the counted iterations: all threads of the engine's process.

    Args:
        python: Minor version of the subject's Python, ``3.12``: another one calls and counts otherwise.
        instrument: What told of calls and lines: ``monitoring`` or ``settrace``, which do not count alike.
        costs: What a unit of work costs.
        steps: By kind; a workload of one token a request has no decode steps.
        figures: By name, what the process has imported and what an iteration adds to its memory; it has no price.
    """

    python: str
    instrument: str
    iterations: PositiveInt
    costs: Costs
    steps: Annotated[dict[StepKind, StepCalls], MinLen(1)]
    figures: dict[Name, Total] = {}

    def anywhere(self) -> Self:
        """What another machine with the same software shows as well."""
        figures = {name: total for name, total in self.figures.items() if not name.startswith(OF_THE_MACHINE)}
        return self.model_copy(update={"figures": figures})

    @model_validator(mode="before")
    @classmethod
    def _of_decode_steps_alone(cls, record: Any) -> Any:
        """Records and profiles of before prefill steps were counted hold those of decode steps without their kind."""
        if not isinstance(record, dict) or "step_calls" not in record or "steps" in record:
            return record
        decode = {"calls": record["step_calls"], "functions": record.get("functions")}
        return {name: field for name, field in record.items() if name not in OF_DECODE_STEPS} | {
            "steps": {"decode": decode}
        }

    @property
    def key(self) -> str:
        """What must be the same for counts to be compared, in words."""
        kinds = " and ".join(kind for kind in STEP_KINDS if kind in self.steps)
        return f"Python {self.python} by {self.instrument} in {kinds} steps"

    def many(self, kind: StepKind) -> float:
        """Steps of a kind in an iteration."""
        return len(self.steps[kind].calls) / self.iterations

    def price_ps(self, kind: StepKind, function: str, what: str) -> int:
        """What one more of this costs, in picoseconds: a C function as timed, all else a unit's least cost."""
        if what == LINES:
            return self.costs.line
        if what == CALLS:
            return self.costs.call
        calls = self.steps[kind].functions.get(function)
        return max(self.costs.c_call, calls.c_ps.get(what, 0) if calls else 0)

    @property
    def varying_share(self) -> float:
        """The share of all events that did not repeat, in the kind of step where it is largest."""
        return max(steps.varying_share for steps in self.steps.values())


def pooled(trials: Sequence[HostCalls]) -> HostCalls:
    """Trials of one build as one, with every range as wide as all of them show it.

    Args:
        trials: At least one; all counted alike.

    Raises:
        ValueError: They were not counted alike.
    """
    if len({trial.key for trial in trials}) > 1:
        raise ValueError(f"counted otherwise: {' and '.join(sorted({trial.key for trial in trials}))}")
    return trials[0].model_copy(
        update={
            "iterations": sum(trial.iterations for trial in trials),
            "steps": {kind: _pooled([trial.steps[kind] for trial in trials]) for kind in trials[0].steps},
            "figures": told_by_all([trial.figures for trial in trials]),
        }
    )


def told_by_all(seen: Sequence[Mapping[str, Total]]) -> dict[str, Total]:
    """Figures that each of these has; a package without modules is not listed, all else could not be read."""
    every = set.intersection(*map(set, seen))
    return {name: total for name, total in widest(seen).items() if name in every or name.startswith(MODULES)}


def _pooled(seen: Sequence[StepCalls]) -> StepCalls:
    names = sorted(set(chain.from_iterable(step.functions for step in seen)))
    return StepCalls(
        calls=tuple(chain.from_iterable(step.calls for step in seen)),
        functions={name: _widest([step.functions.get(name, _ABSENT) for step in seen]) for name in names},
    )


_ABSENT = FunctionCalls()


def _widest(seen: Sequence[FunctionCalls]) -> FunctionCalls:
    callees = sorted(set(chain.from_iterable(function.c_calls for function in seen)))
    times = {name: [function.c_ps[name] for function in seen if name in function.c_ps] for name in callees}
    return FunctionCalls(
        calls=_range([function.calls for function in seen]),
        lines=_range([function.lines for function in seen]),
        c_calls=widest([function.c_calls for function in seen]),
        c_ps={name: min(readings) for name, readings in times.items() if readings},
    )


def widest(seen: Sequence[Mapping[str, Total]]) -> dict[str, Total]:
    """The least and the most of what was seen, by name; 0 where one does not have it."""
    names = sorted(set(chain.from_iterable(seen)))
    return {name: _range([totals.get(name, (0, 0)) for totals in seen]) for name in names}


def _range(totals: Sequence[Total]) -> Total:
    return min(least for least, _ in totals), max(most for _, most in totals)


def calls_per_step(trial: Trial) -> float | None:
    """How many functions the host calls in the median decode step of a trial; ``None`` where it was not counted."""
    calls: HostCalls | None = trial.payload("calls")
    decode = calls.steps.get("decode") if calls else None
    return float(np.median(decode.calls)) if decode else None
