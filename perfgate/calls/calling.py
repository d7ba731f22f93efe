"""Called trials: a fresh engine of which every call and line of the host is counted, step by step.

Counting makes the host several times slower, so nothing here is a time of the workload: such a trial has no iterations
and no start-up. What repeats is how much was done (:mod:`perfgate.calls.host_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, NonNegativeInt, ValidationError

from perfgate.calls.host_calls import (
    Costs,
    Count,
    FunctionCalls,
    HostCalls,
    Name,
    StepCalls,
    StepKind,
    Total,
    pooled,
    told_by_all,
)  # fmt: skip
from perfgate.capture.driver_protocol import Launch
from perfgate.capture.instruments import Instrument
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.scenario.schedule import CallTrials

CALLS, LINES, TIMED, TOOK = "()", ":", "#", "~"
"""What the worker counts of a function beside the C functions that it calls, see ``call_counter.py``."""
MOST_COUNTS = 100_000
"""Far more than a step of vLLM has; a record holds those of every trial."""
MOST_FIGURES = 2000
"""A process of vLLM has modules of some three hundred packages."""
FEWEST_GROWTHS = 5
"""Of so many a side, those of two engines that are alike do not overlap in 2 of 252 orders."""


class _Costs(Costs):
    timing: NonNegativeInt


_Figures = Annotated[dict[Name, Count], Field(max_length=MOST_FIGURES)]


class _ProcessFigures(BaseModel):
    """What the worker's process had imported and held when the iteration began, and what the system counted in it."""

    model_config = ConfigDict(strict=True)

    modules: _Figures
    totals: _Figures
    spent: _Figures


class _Reported(BaseModel):
    """What the worker has counted in one iteration: calls of each step, counts of each function in two parts."""

    model_config = ConfigDict(strict=True)

    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,3}$")]
    instrument: Annotated[str, Field(max_length=40)]
    costs: _Costs
    calls: Annotated[list[Count], FailFast()]
    functions: dict[str, dict[str, Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2), FailFast()]]]


class CallCounts(Instrument):
    """The worker's own counter."""

    name = "counting calls"
    measures = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._declared = job.cell.calls or CallTrials()
        self._seen: list[HostCalls] = []
        self._process: list[_ProcessFigures] = []

    @property
    def iterations(self) -> tuple[int, int]:
        """At least one of warm-up, which fills the caches of functions."""
        return max(super().iterations[0], 1), self._declared.iterations

    def prepare(self) -> Launch:
        """The counter is there before the engine starts its threads."""
        return Launch(count_calls=True)

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:  # noqa: ARG002 (the interface's)
        """Take what was counted, once the engine is warm."""
        if not warmup:
            self._seen.append(read_calls(answer))
            self._process.append(read_figures(answer))

    def fields(self) -> dict[str, Any]:
        """The counts of all iterations."""
        if not self._seen:
            return {"startup": None, "calls": None}
        return {"startup": None, "calls": pooled(self._seen).model_copy(update={"figures": figures_of(self._process)})}


def read_calls(answer: Mapping[str, Any]) -> HostCalls:
    """What a worker's answer to one iteration says that the host ran in its steps.

    Raises:
        InvalidTrialError: ``engine-failed``: It says nothing of the kind, or a request got no token.
    """
    try:
        reported = _read(answer["host_calls"])
        tokens = [entry[1] for entry in answer.get("deliveries", ())]
        return _by_kind(reported, tokens, decode_begins(answer))
    except (ValidationError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        text = f"counted calls: {str(error)[:500]}"
        raise InvalidTrialError("engine-failed", text) from error


def read_figures(answer: Mapping[str, Any]) -> _ProcessFigures:
    """What it says of its process, before that iteration and in it.

    Raises:
        InvalidTrialError: ``engine-failed``: It says nothing of the kind.
    """
    try:
        return _ProcessFigures.model_validate(answer["process"])
    except (ValidationError, KeyError) as error:
        raise InvalidTrialError("engine-failed", f"figures of the process: {str(error)[:500]}") from error


def figures_of(seen: Sequence[_ProcessFigures]) -> dict[str, Total]:
    """Modules, and of enough iterations by how much each total grows, 0 if it falls, and what the system counts."""
    added = [
        {name: max(most - before.totals.get(name, most), 0) for name, most in after.totals.items()} | after.spent
        for before, after in pairwise(seen)
    ]
    iterations = [{f"{name} an iteration": count for name, count in growth.items()} for growth in added]
    figures = ([reading.modules for reading in seen], iterations if len(iterations) >= FEWEST_GROWTHS else [])
    return {name: total for part in figures if part for name, total in told_by_all([*map(_exact, part)]).items()}


def _exact(counts: Mapping[str, int]) -> dict[str, Total]:
    return {name: (count, count) for name, count in counts.items()}


def _read(said: Mapping[str, Any]) -> _Reported:
    """Counted before it is validated, because each complaint takes a kilobyte."""
    if (many := sum(1 + len(counts) for counts in said["functions"].values())) > MOST_COUNTS:
        raise ValueError(f"{many} counts; a step has at most {MOST_COUNTS}")
    return _Reported.model_validate(said)


def decode_begins(answer: Mapping[str, Any]) -> int:
    """The first step after every request has its first token, as the worker says.

    Raises:
        KeyError: It does not say.
        ValueError: It has no such step.
    """
    begin = answer["decode_begins"]
    if type(begin) is not int or not 1 <= begin <= len(answer["deliveries"]):
        raise ValueError(f"expected a step of the engine, not {begin!r}")
    return begin


def _by_kind(reported: _Reported, tokens: Sequence[Sequence[int]], begin: int) -> HostCalls:
    if len(reported.calls) != len(tokens):
        raise ValueError("expected the calls of each step of the engine")
    # What a return without tokens runs after that belongs to the decode steps, or to prefill where there is none.
    shown: dict[StepKind, list[int]] = {
        "decode": [number for number, row in enumerate(tokens) if number >= begin and any(row)],
        "prefill": [*range(begin)],
    }
    parts = {"decode": slice(1, None), "prefill": slice(1 if shown["decode"] else None)}
    return HostCalls(
        python=reported.python,
        instrument=reported.instrument,
        iterations=1,
        costs=Costs(**reported.costs.model_dump(exclude={"timing"})),
        steps={kind: _step_calls(reported, parts[kind], steps) for kind, steps in shown.items() if steps},
    )


def _step_calls(reported: _Reported, part: slice, shown: Sequence[int]) -> StepCalls:
    """What ran in a part of the iteration, and how many calls each step shown makes."""
    functions = {}
    for name, entries in reported.functions.items():
        sums = {what: sum(counts[part]) for what, counts in entries.items()}
        if any(sums.values()):
            functions[name] = _function(sums, reported.costs.timing)
    return StepCalls(calls=tuple(reported.calls[number] for number in shown), functions=functions)


def _function(sums: Mapping[str, int], timing_ps: int) -> FunctionCalls:
    """One function; what timing a C call took is not part of what the call takes."""
    c_calls = {what: count for what, count in sums.items() if count and what not in (CALLS, LINES)
               and what[0] not in (TIMED, TOOK)}  # fmt: skip
    timed = {what: sums.get(TIMED + what, 0) for what in c_calls}
    return FunctionCalls(
        calls=(sums.get(CALLS, 0),) * 2,
        lines=(sums.get(LINES, 0),) * 2,
        c_calls=_exact(c_calls),
        c_ps={
            what: max(1000 * sums.get(TOOK + what, 0) // calls - timing_ps, 0) for what, calls in timed.items() if calls
        },
    )
