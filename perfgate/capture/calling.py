"""Called trials: a fresh engine of which every call and line of the host is counted, step by step.

Counting makes the host several times slower, so nothing here is a time of the workload: such a trial has no iterations
and no start-up. What repeats is how much was done (:mod:`perfgate.calls.host_calls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, NonNegativeInt, PositiveInt, ValidationError

from perfgate.calls.host_calls import Costs, FunctionCalls, HostCalls, pooled
from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.metrics.trial import Iteration
from perfgate.scenario.call_trials import CallTrials

CALLS, LINES = "()", ":"
"""What the worker counts of a function beside the C functions that it calls, see ``call_counter.py``."""
MOST_COUNTS = 100_000
"""Far more than a step of vLLM has; a record holds those of every trial."""


class _Costs(Costs):
    timing: NonNegativeInt


class _Reported(BaseModel):
    """What the worker has counted in one iteration: of each function the counts of every step."""

    model_config = ConfigDict(strict=True)

    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,3}$")]
    instrument: Annotated[str, Field(max_length=40)]
    costs: _Costs
    functions: dict[str, dict[str, Annotated[list[NonNegativeInt], FailFast()]]]
    times: dict[str, dict[str, Annotated[tuple[PositiveInt, NonNegativeInt], Field(strict=False)]]]


class CallCounts(Instrument):
    """The worker's own counter."""

    name = "counting calls"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._declared = job.cell.calls or CallTrials()
        self._seen: list[HostCalls] = []

    @property
    def iterations(self) -> tuple[int, int]:
        """At least one of warm-up, which fills the caches of functions."""
        return max(super().iterations[0], 1), self._declared.iterations

    def prepare(self) -> Launch:
        """The counter is there before the engine starts its threads."""
        return Launch(count_calls=True)

    def drive(self, engine: Engine, say: Say) -> Iterator[Iteration]:
        """Run the engine; none of it is an iteration of the trial."""
        for _ in super().drive(engine, say):
            pass
        yield from ()

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:  # noqa: ARG002 (the interface's)
        """Take what was counted, once the engine is warm."""
        if not warmup:
            self._seen.append(read_calls(answer))

    def fields(self) -> dict[str, Any]:
        """The counts of all iterations."""
        return {"startup": None, "calls": pooled(self._seen) if self._seen else None}


def read_calls(answer: Mapping[str, Any]) -> HostCalls:
    """What a worker's answer to one iteration says that the host ran in its decode steps.

    Raises:
        InvalidTrialError: ``protocol-error``: It says nothing of the kind, or the engine made no decode step.
    """
    try:
        reported = _read(answer["host_calls"])
        tokens = [entry[1] for entry in answer.get("deliveries", ())]
        return _in_decode(reported, decode_begins(tokens), [any(row) for row in tokens])
    except (ValidationError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        text = f"counted calls: {str(error)[:500]}"
        raise InvalidTrialError("protocol-error", text) from error


def _read(said: Mapping[str, Any]) -> _Reported:
    """Counted before it is validated, because each complaint takes a kilobyte."""
    for part in ("functions", "times"):
        if (many := sum(1 + len(own) for own in said[part].values())) > MOST_COUNTS:
            raise ValueError(f"{part}: {many} counts; a step has at most {MOST_COUNTS}")
    return _Reported.model_validate(said)


def decode_begins(tokens: Sequence[Sequence[int]]) -> int:
    """The first step after every request has its first token."""
    begun = [False] * len(tokens[0])
    for number, row in enumerate(tokens):
        begun = [before or count > 0 for before, count in zip(begun, row, strict=True)]
        if all(begun):
            return number + 1
    raise ValueError("no step gave every request its first token")


def _in_decode(reported: _Reported, begin: int, delivered: Sequence[bool]) -> HostCalls:
    """Everything from that step on; the calls of single steps are those of returns with tokens."""
    if {len(counts) for own in reported.functions.values() for counts in own.values()} - {len(delivered)}:
        raise ValueError("expected a count for each step of the engine")
    step_calls = [0] * len(delivered)
    functions = {}
    for name, own in reported.functions.items():
        for counts in (counts for what, counts in own.items() if what != LINES):
            step_calls = [before + count for before, count in zip(step_calls, counts, strict=True)]
        sums = {what: sum(counts[begin:]) for what, counts in own.items()}
        if any(sums.values()):
            functions[name] = _function(sums, reported.times.get(name, {}), reported.costs.timing)
    if not functions:
        raise ValueError("nothing was counted in the decode steps")
    return HostCalls(
        python=reported.python,
        instrument=reported.instrument,
        iterations=1,
        step_calls=tuple(calls for calls, tokens in list(zip(step_calls, delivered, strict=True))[begin:] if tokens),
        costs=Costs(**reported.costs.model_dump(exclude={"timing"})),
        functions=functions,
    )


def _function(sums: Mapping[str, int], times: Mapping[str, tuple[int, int]], timing_ps: int) -> FunctionCalls:
    """One function; what timing a C call took is not part of what the call takes."""
    c_calls = {what: (count, count) for what, count in sums.items() if count and what not in (CALLS, LINES)}
    known = {what: times[what] for what in c_calls if what in times}
    return FunctionCalls(
        calls=(sums.get(CALLS, 0),) * 2,
        lines=(sums.get(LINES, 0),) * 2,
        c_calls=c_calls,
        c_ps={what: max(1000 * total_ns // calls - timing_ps, 0) for what, (calls, total_ns) in known.items()},
    )
