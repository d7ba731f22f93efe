"""What one trial measured: the iterations of a fresh engine, its start, and what profilers saw."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from annotated_types import MinLen
from pydantic import AfterValidator, Field, NonNegativeInt, WithJsonSchema, model_validator

from perfgate.machine.atomic_files import sha256_of
from perfgate.machine.json_text import Figures
from perfgate.machine.telemetry import GpuTelemetry, Window
from perfgate.metrics.kinds import TRIAL_KINDS, joined, known, payload
from perfgate.metrics.memory import Memory
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import HeadName, Side
from perfgate.models import Frozen, Note, absent
from perfgate.reasons import CODE

Kind = Annotated[str, AfterValidator(known), WithJsonSchema({"enum": [*TRIAL_KINDS], "type": "string"})]
"""The name of a kind of trial."""

KINDS: Final[tuple[Kind, ...]] = (*TRIAL_KINDS,)
"""Kinds of trial: profilers slow an engine down, so what is read from one kind is never compared with another's."""


CLOCKED: Final[tuple[Kind, ...]] = tuple(name for name, kind in TRIAL_KINDS.items() if kind.clocked)
"""Those that hold times of the device, which clocks of the two sides may explain."""


def key_of(kind: Kind, what: str) -> str:
    """The key of one kind in a file: ``{}pairs`` is ``pairs``, ``traced_pairs`` and so on."""
    return what.format("" if kind == "timed" else f"{kind}_")


TAKE_AGAIN: Final = "Take the run folder from where it was measured, or its artifact, again; do not edit it."

Code = Annotated[str, Field(pattern=CODE)]
"""A reason code as it was written: a record keeps its digest."""


class Probes(NamedTuple):
    """What each rank took for a fixed piece of work, in nanoseconds; rank by rank in the same order.

    Args:
        before: Before the first submission.
        after: After the last delivery.
    """

    before: Figures
    after: Figures


PROBED_GPUS: Final[tuple[str, ...]] = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
"""Names of GPUs, as NVML gives them, on which the probe told the state of at least 99 % of the iterations of builds
that were compared with themselves (docs/states.md)."""
SLOWER: Final = 1.1
"""What a slow GPU's probe takes at least, in readings of the fast state: 1.2 on an H200, 1.18 on an H100. Readings of
one state are up to 2 % apart on one card, cards up to 2.5 % (tests/fixtures/h100-probe.csv)."""

LEAST_ITERATIONS: Final = 2
"""Iterations in a state that a trial needs for a value there, if it has as many."""

SETTLED: Final = "settle_ns"
"""The figure of a trial whose warm-up went on until the GPUs were fast, or for as long as it may: for how long."""


def least_iterations(iterations: int) -> int:
    """Iterations in a state that a trial of so many needs for a value there."""
    return min(LEAST_ITERATIONS, iterations)


def is_slow(readings: Sequence[int], fastest: Sequence[int]) -> bool:
    """Whether some rank's reading is that of a slow GPU; never where the fastest are of other ranks, or unknown."""
    if len(readings) != len(fastest):
        return False
    return any(reading > SLOWER * least for reading, least in zip(readings, fastest, strict=True))


def tells_states(gpus: Sequence[str], probed: tuple[str, ...] = PROBED_GPUS) -> bool:
    """Whether the probe tells the state of GPUs of these names."""
    return bool(gpus) and set(gpus) <= set(probed)


class Iteration(Frozen):
    """One batch run to completion, or one window of load; times in integer nanoseconds.

    :mod:`perfgate.metrics.catalogue` explains them. Under load a request's times run from when it was scheduled, not
    from when it was sent.

    Args:
        ttft_ns: Per request, in order of submission.
        e2e_ns: Per request, in order of submission.
        itl_ns: Per pure decode step, in order of time; empty below three output tokens. Under load per gap between two
            tokens of a request, in order of size, and at most some thousands of them at even ranks.
        output_tokens: Tokens generated for each request; 0 where ``lengths`` says it.
        elapsed_ns: First submission to last delivery.
        tokens_digest: SHA-256 of the tokens generated, request by request.
        begin_ns: First submission, on the monotonic clock of its machine since boot, as telemetry's is.
        multi_token: True where a delivery carried more than one token a request.
        step_ns: Median time of those steps where ``multi_token``, in which ``itl_ns`` is divided by the tokens of each;
            not written elsewhere, nor by older versions.
        lengths: Tokens generated for each request of a window under load, whose requests differ in length; empty, and
            then not written, where all got ``output_tokens``.
        cancelled_tokens: Tokens that requests got which the load cancelled; they have no other figures.
        probe_ns: Readings around it that tell in which state the GPUs were; ``None`` where there are none.
    """

    ttft_ns: Annotated[Figures, MinLen(1)]
    e2e_ns: Annotated[Figures, MinLen(1)]
    itl_ns: Figures
    output_tokens: NonNegativeInt
    elapsed_ns: NonNegativeInt
    tokens_digest: str
    begin_ns: int
    multi_token: bool = False
    step_ns: Annotated[NonNegativeInt | None, Field(exclude_if=absent)] = None
    lengths: Annotated[Figures, Field(exclude_if=operator.not_)] = ()
    cancelled_tokens: Annotated[NonNegativeInt, Field(exclude_if=operator.not_)] = 0
    probe_ns: Annotated[Probes | None, Field(exclude_if=absent)] = None

    @model_validator(mode="after")
    def _a_figure_for_each(self) -> Self:
        if len(self.ttft_ns) != len(self.e2e_ns):
            raise ValueError("expected a ttft_ns and an e2e_ns for each request")
        if self.lengths and (self.output_tokens or len(self.lengths) != len(self.ttft_ns)):
            raise ValueError("expected either output_tokens or a length for each request")
        if self.probe_ns is not None and not 0 < len(self.probe_ns.before) == len(self.probe_ns.after):
            raise ValueError("expected a reading of each rank before and after")
        return self

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens generated for each request."""
        return self.lengths or (self.output_tokens,) * len(self.ttft_ns)

    @property
    def generated(self) -> int:
        """All tokens that came of it."""
        return sum(self.tokens) + self.cancelled_tokens

    @property
    def window(self) -> Window:
        """When it ran; decode begins once every request has its first token, and under load at once."""
        if self.lengths:
            return Window(self.begin_ns, self.begin_ns, self.begin_ns + self.elapsed_ns)
        return Window(self.begin_ns, self.begin_ns + max(self.ttft_ns), self.begin_ns + self.elapsed_ns)


class Startup(Frozen):
    """What one engine start cost and yielded.

    Args:
        import_ns: Import of torch and vllm; of a parked worker with the making of its engine's configuration; of a
            server only what it did ahead.
        engine_ns: Construction of the engine.
        ready_ns: Spawn of the process to an engine ready for requests, on the parent's clock, without ``parked_ns``.
        model_memory_bytes: Memory of the weights, where the engine tells.
        kv_token_capacity: Tokens the KV cache holds, where the engine tells.
        cache_files: Files in the subject's compile and autotune caches before the start; 0 is a cold start.
        kv_memory_bytes: Memory of the KV cache, where the engine tells; else not written.
        parked_ns: How long the worker waited for its trial, its imports done beside the trial before; 0, and then not
            written, where it was started for it.
    """

    import_ns: int
    engine_ns: int
    ready_ns: int
    model_memory_bytes: int | None = None
    kv_token_capacity: int | None = None
    cache_files: int = 0
    kv_memory_bytes: Annotated[int | None, Field(exclude_if=absent)] = None
    parked_ns: Annotated[int, Field(exclude_if=operator.not_)] = 0


def _a_date(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class Fill(Frozen):
    """What a trial found in its compile caches.

    Args:
        draw: Twelve digits that name their first content: equal ones were compiled and tuned once, together.
        filled_utc: When, ISO 8601.
    """

    draw: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    filled_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"), AfterValidator(_a_date)]


class Failure(Note):
    """Why a trial has no value: a reason code and the words of whoever failed."""

    code: Code

    @property
    def sentence(self) -> str:
        """The first line of the words: what the engine, the driver or perfgate itself said."""
        return self.text.partition("\n")[0]


def _below(path: str) -> str:
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError("expected a file of the run folder")
    return path


class Artifact(Frozen):
    """A file of the run folder, relative to it, by SHA-256."""

    path: Annotated[str, AfterValidator(_below)]
    sha256: str

    @classmethod
    def of(cls, file: Path, run_folder: Path) -> Self:
        """A file as it is now.

        Raises:
            OSError: It cannot be read.
        """
        path = file.resolve().relative_to(run_folder.resolve()).as_posix()
        return cls(path=path, sha256=sha256_of(file))


@joined(("no_floor", payload))
class Trial(Frozen):
    """One fresh engine of one subject on one set of GPUs; beside these it has the fields that kinds bring.

    Args:
        index: Number of the trial in its run, from 0; its folder is ``trials/NNN``.
        kind: ``timed`` trials alone feed latency metrics; what others hold says their entry among the kinds.
        pair: Number of the pair, from 0; ``None`` for a warm-up trial, which is never judged.
        position: 0 for the first trial of its pair, 1 for the second; among several heads its place in the order that
            was drawn of all builds, whether or not each was taken.
        subject: The side measured.
        heads: In a run of several heads which it is, of its base those that it is measured beside; else not written.
        visit: Index into the record's visits.
        gpus: UUIDs; empty where the engine ran on the CPU.
        t0_utc: Start, ISO 8601 in UTC, for people; durations never come from it.
        duration_ns: Start to end of the whole trial on the monotonic clock; 0 where no engine was started.
        failure: Set where the trial is invalid; its pair is then dropped whole.
        versions: Packages of the subject as measured: vllm, torch, triton, python.
        startup: Start-up costs, where the engine came up.
        iterations: Measured iterations; warm-up is only in the timeline.
        cautions: What is to be known of this trial, by reason codes, or by names that a reason code covers.
        timeline: Raw deliveries of every iteration.
        telemetry: What each of its GPUs did meanwhile.
        samples: The readings behind it.
        decode: What the decode steps of a traced trial ran; a model of that kind.
        traces: What the profiler left, a file or one a rank; it may hold the whole environment, so keep it private.
        counted: What ncu counted in a counted trial; a model of that kind.
        floor: What the decode steps of a timed trial are held against.
        no_floor: Why that is unknown, in words; empty where it is known, and in trials that have none.
        memory: What a timed trial's engine held between its iterations.
        figures: What else was measured, by name: integers that no more than a metric of their own reads.
        fill: What its compile caches had been filled with; ``None``, and not written, where that was not kept.
        used: What each process of its engine used of the subject's ``path=``; empty where none told, and ``None`` where
            nobody asked: by older versions, and where the engine failed.
    """

    index: int
    kind: Kind = "timed"
    pair: int | None
    position: int
    subject: Side
    heads: Annotated[tuple[HeadName, ...], Field(exclude_if=operator.not_)] = ()
    visit: int
    gpus: tuple[str, ...] = ()
    t0_utc: str
    duration_ns: int
    failure: Failure | None = None
    versions: dict[str, str] = {}
    startup: Startup | None = None
    iterations: tuple[Iteration, ...] = ()
    cautions: tuple[Code, ...] = ()
    timeline: Artifact | None = None
    telemetry: tuple[GpuTelemetry, ...] = ()
    samples: Artifact | None = None
    decode: Any = None
    traces: tuple[Artifact, ...] = ()
    counted: Any = None
    floor: Floor | None = None
    no_floor: str = ""
    memory: Annotated[Memory | None, Field(exclude_if=absent)] = None
    figures: Annotated[dict[str, int], Field(exclude_if=operator.not_)] = {}
    fill: Annotated[Fill | None, Field(exclude_if=absent)] = None
    used: Annotated[tuple[ProcessUse, ...] | None, Field(exclude_if=absent)] = None

    @property
    def label(self) -> str:
        """What its build is called in its run: its side, or its name among several heads."""
        return self.heads[0] if self.heads and self.subject == "head" else self.subject

    def payload(self, name: str) -> Any:
        """What a field holds that a kind brings; ``None`` where this trial has none."""
        return getattr(self, name, None)

    @property
    def started(self) -> bool:
        """Whether an engine was started; else perfgate refused to, and nothing of the subject ran."""
        return self.duration_ns > 0


def readings_of(iteration: Iteration) -> tuple[tuple[int, ...], ...]:
    """What the probe read before and after an iteration, on each rank; empty where it read nothing."""
    return (iteration.probe_ns.before, iteration.probe_ns.after) if iteration.probe_ns else ()


def in_state(trial: Trial, fastest: Sequence[int], *, slow: bool) -> tuple[Iteration, ...]:
    """The iterations of a trial whose readings are all those of a slow GPU, or all of a fast one."""
    return tuple(
        iteration
        for iteration in trial.iterations
        if all(is_slow(reading, fastest) is slow for reading in readings_of(iteration))
    )
