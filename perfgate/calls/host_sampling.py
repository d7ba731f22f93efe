"""Sampled trials: a fresh engine whose own thread is interrupted four thousand times a second to see where it is.

A handler in Python runs at each sample, so nothing here is a time of the workload: such a trial has no iterations and
no start-up. What is kept are the decode steps (:mod:`perfgate.calls.host_profile`); every stack of them is in the
trial's folder, in speedscope's format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path as File
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, NonNegativeInt, PositiveInt, ValidationError

from perfgate.calls.calling import decode_begins
from perfgate.calls.host_profile import FIGURES, HostProfile, Path, Spent, summed, tree_of
from perfgate.calls.host_profile import speedscope as as_speedscope
from perfgate.capture.driver_protocol import Launch
from perfgate.capture.engine import LOG
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, InvalidTrialError
from perfgate.metrics.trial import Artifact

STEPS = 1200
"""Decode steps to be sampled, at least: 50 us more in each are some 240 samples then."""
MOST_VALUES = 4_000_000
"""Far more than an iteration has; counted before they are validated, because each complaint takes a kilobyte."""
MOST_STACKS, MOST_DEPTH = 50_000, 200
"""Of a trial; a step of vLLM has some thousand stacks, at most a hundred deep."""
IMPORT_TIMES = "PYTHONPROFILEIMPORTTIME"
"""Of Python, as ``-X importtime``; the worker takes it out of what its own children inherit."""
READ_BYTES = 8 << 20
"""Of the log; vLLM imports some five thousand modules, 80 bytes each, before anything else fills it."""
MOST_PACKAGES, DEPTH = 5000, 2
"""Packages of a process, and the parts of a name that tell a package: ``torch._dynamo``, ``vllm.v1``."""
_IMPORTED = re.compile(rb"(?m)^import time: +(\d{1,12}) \| +\d{1,12} \| +([A-Za-z_][\w.]{0,200})$")
PART = "host.speedscope.json"
_Numbers = Annotated[list[Annotated[int, Field(ge=0, lt=LARGEST)]], FailFast()]


class _Sampled(BaseModel):
    """What the worker has seen in one iteration, see ``host_sampler.py``."""

    model_config = ConfigDict(strict=True)

    period_ns: PositiveInt
    frames: Annotated[list[Annotated[str, Field(max_length=1000)]], FailFast()]
    stacks: Annotated[list[_Numbers], FailFast()]
    samples: Annotated[list[Annotated[_Numbers, Field(min_length=4, max_length=4)]], FailFast()]
    steps: Annotated[list[Annotated[_Numbers, Field(min_length=10, max_length=10)]], FailFast()]
    threads: Annotated[
        dict[str, Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]], Field(max_length=999)
    ]
    cpus: list[NonNegativeInt]


class HostSamples(Instrument):
    """The worker's own sampler."""

    name = "sampling the host"
    measures = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._seen = SampledSteps()
        self._profile: HostProfile | None = None
        self._kept: tuple[Artifact, ...] = ()

    @property
    def iterations(self) -> tuple[int, int]:
        """At least one of warm-up, and as many as have :data:`STEPS` decode steps."""
        return max(super().iterations[0], 1), math.ceil(STEPS / max(self.job.cell.batch.output_tokens - 1, 1))

    def prepare(self) -> Launch:
        """The sampler hears of garbage collections from the start, and Python writes down what it imports."""
        return Launch(environment={IMPORT_TIMES: "1"}, sample_host=True)

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:  # noqa: ARG002 (the interface's)
        """Take what was sampled, once the engine is warm."""
        if not warmup:
            self._seen.add(answer)

    def collect(self, say: Say) -> None:
        """Sum the stacks, and write them down."""
        imports = read_imports(self.job.folder / LOG)
        self._profile = self._seen.profile().model_copy(update={"imports": imports})
        say("writing the stacks")
        text = json.dumps(as_speedscope(f"{self.job.label} {self.job.cell.name}", self._seen.stacks))
        self._kept = (self.job.packed(PART, text.encode()),)

    def fields(self) -> dict[str, Any]:
        """What was seen, and the file of stacks."""
        return {"startup": None, "host": self._profile, "traces": self._kept}


class SampledSteps:
    """The decode steps of all sampled iterations."""

    def __init__(self) -> None:
        self.stacks: dict[Path, Spent] = {}
        self._figures = dict.fromkeys(FIGURES, 0)
        self._steps = 0
        self._cpus: set[int] = set()
        self._last: _Sampled | None = None

    def add(self, answer: Mapping[str, Any]) -> None:
        """Take what a worker's answer to one iteration says.

        Raises:
            InvalidTrialError: ``engine-failed``: It says nothing of the kind, or the engine made no decode step.
        """
        try:
            sampled = _read(answer["host_samples"])
            self._add(sampled, len(answer["deliveries"]), decode_begins(answer))
        except (ValidationError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise InvalidTrialError("engine-failed", f"sampled stacks: {str(error)[:500]}") from error

    def _add(self, sampled: _Sampled, returns: int, begin: int) -> None:
        if len(sampled.steps) != returns or begin == returns:
            raise ValueError("expected figures of each step of the engine, and a decode step among them")
        self._add_steps(sampled.steps, begin)
        for step, stack, ticks_ns, work_ns in sampled.samples:
            if begin <= step:
                path = tuple(sampled.frames[number] or "?" for number in sampled.stacks[stack][:MOST_DEPTH]) or ("?",)
                spent = Spent(1, work_ns, max(ticks_ns - work_ns, 0), work_ns**2)
                self.stacks[path] = self.stacks.get(path, Spent()).plus(spent)
        if len(self.stacks) > MOST_STACKS:
            raise ValueError(f"more than {MOST_STACKS} stacks")
        self._last = sampled

    def _add_steps(self, steps: list[list[int]], begin: int) -> None:
        for before, (*spent, cpu, collections, collected_ns) in zip(steps[begin - 1 :], steps[begin:], strict=False):
            self._cpus.add(cpu)
            figures = (*spent, collections, collected_ns, int(cpu != before[len(spent)]))
            for name, figure in zip(FIGURES, figures, strict=True):
                self._figures[name] += figure
        self._steps += len(steps) - begin

    def profile(self) -> HostProfile:
        """What a record keeps.

        Raises:
            InvalidTrialError: ``engine-failed``: nothing was sampled, or a function or thread has a name that no
                report could show.
        """
        if self._last is None:
            raise InvalidTrialError("engine-failed", "no iteration was sampled")
        try:
            return HostProfile(
                steps=self._steps, period_ns=self._last.period_ns, figures=self._figures,
                cpus=tuple(sorted(self._cpus)), allowed=max(len(self._last.cpus), 1),
                threads={name: (many, fewest) for name, (many, fewest) in self._last.threads.items()},
                functions=summed(self.stacks), tree=tree_of(self.stacks),
            )  # fmt: skip
        except ValidationError as error:
            raise InvalidTrialError("engine-failed", f"sampled stacks: {str(error)[:500]}") from error


def _read(said: Mapping[str, Any]) -> _Sampled:
    values = sum(len(said[part]) for part in ("frames", "samples", "steps")) + sum(map(len, said["stacks"]))
    if values > MOST_VALUES:
        raise ValueError(f"{values} values; an iteration has at most {MOST_VALUES}")
    return _Sampled.model_validate(said)


def read_imports(log: File) -> dict[str, tuple[int, int]]:
    """Modules and their own microseconds by package, by the table of ``python -X importtime`` in a log."""
    with log.open("rb") as stream:
        times = {name: int(own_us) for own_us, name in _IMPORTED.findall(stream.read(READ_BYTES))}
    packages: dict[str, tuple[int, int]] = {}
    for name, own_us in times.items():
        package = ".".join(name.decode("ascii").split(".")[:DEPTH])
        modules, spent_us = packages.get(package, (0, 0))
        if package in packages or len(packages) < MOST_PACKAGES:
            packages[package] = (modules + 1, spent_us + own_us)
    return packages
