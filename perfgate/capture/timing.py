"""Timed trials: nothing in the engine but the workload, and asynchronous scheduling as vLLM ships it.

Between iterations each rank probes the state of its GPU (:mod:`perfgate.capture.vllm_probe`) and tells what it holds
(:mod:`perfgate.capture.vllm_memory`), and warm-up goes on for a while where a GPU is slow
(:mod:`perfgate.capture.settling`).

Each answer is on disk as soon as it arrives, so that a killed trial still shows how far it came.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TextIO

from pydantic import Field, TypeAdapter, ValidationError

from perfgate.capture.driver_protocol import Engine
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, MOST_RANKS, InvalidTrialError
from perfgate.metrics.memory import Memory
from perfgate.metrics.trial import SETTLED, Artifact, Iteration, is_slow
from perfgate.units import NS_PER_S

_Size = Annotated[int, Field(ge=0, lt=LARGEST, strict=True)]
_PROCESS = ("process id", "resident", "peak resident")
_Process = tuple[_Size, _Size, _Size]
_Rank = tuple[_Size, _Size, _Size, _Size, _Size, _Size]
_READINGS: TypeAdapter[list[_Process | _Rank]] = TypeAdapter(
    Annotated[list[_Process | _Rank], Field(min_length=1, max_length=MOST_RANKS + 1)]
)


class Held(NamedTuple):
    """What all processes and ranks held between iterations, in the order of :class:`Memory`'s fields; bytes."""

    resident: int
    peak_resident: int
    allocated: int | None
    peak_allocated: int | None
    peak_reserved: int | None


def read_held(answer: Mapping[str, Any]) -> Held | None:
    """The ``memory`` of a worker's answer to one iteration; ``None`` where it tells none.

    Raises:
        InvalidTrialError: ``engine-failed``: It has another shape.
    """
    said = answer.get("memory")
    if said is None:
        return None
    try:
        readings = _READINGS.validate_python(said)
    except ValidationError as error:
        text = f"memory: expected figures of each process, found {str(said)[:200]}"
        raise InvalidTrialError("engine-failed", text) from error
    processes = {pid: (resident, peak) for pid, resident, peak, *_ in readings}
    device = [reading[3:] for reading in readings if len(reading) > len(_PROCESS)]
    resident, peak = (sum(figures) for figures in zip(*processes.values(), strict=True))
    if not device:
        return Held(resident, peak, None, None, None)
    allocated, peak_allocated, peak_reserved = (sum(figures) for figures in zip(*device, strict=True))
    return Held(resident, peak, allocated, peak_allocated, peak_reserved)


def memory_of(iterations: Sequence[Held | None]) -> Memory | None:
    """The memory of a trial; ``None`` where an iteration has no reading, or there is none."""
    held = [reading for reading in iterations if reading is not None]
    if not held or len(held) < len(iterations):
        return None
    device = [(reading.allocated, reading.peak_allocated, reading.peak_reserved) for reading in held]
    columns = [[size for size in column if size is not None] for column in zip(*device, strict=True)]
    allocated, peak_allocated, peak_reserved = (tuple(column) if len(column) == len(held) else () for column in columns)
    return Memory(
        resident=tuple(reading.resident for reading in held),
        peak_resident=max(reading.peak_resident for reading in held),
        allocated=allocated,
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
    )


class Timed(Instrument):
    """No instrument: no profiler, no hooks, no ranges. It writes the trial's timeline, a line an iteration."""

    probe = True
    warms_up_beside = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._file = job.folder / "timeline.jsonl"
        self._stream: TextIO
        self._preemptions_known = self._probed = True
        self._multi_token = False
        self._settled_ns = 0
        self._held: list[Held | None] = []

    def drive(self, engine: Engine, say: Say) -> Iterator[Iteration]:
        """See :class:`Instrument`."""
        with self._file.open("w", encoding="utf-8") as self._stream:
            for iteration in super().drive(engine, say):
                self._multi_token |= iteration.multi_token
                yield iteration

    def settle(self, engine: Engine, last: Iteration | None, say: Say) -> None:
        """Warm up until the probe is as fast as it was in this run, for as long as the job says at most."""
        # Prompts that no measured iteration has: its prefixes must not be cached.
        self.await_fast(engine, last, sum(self.iterations), say)

    def await_fast(self, engine: Engine, last: Iteration | None, number: int, say: Say) -> int:
        """The same by iterations of these numbers and above.

        Returns:
            The next number.
        """
        begin_ns = time.monotonic_ns()
        while last and self._slow(last) and time.monotonic_ns() - begin_ns < self.job.settle_s * NS_PER_S:
            say("warming up until the GPU is fast")
            last = self.run(engine, number, warmup=True)
            number += 1
            self._settled_ns = time.monotonic_ns() - begin_ns
        return number

    def _slow(self, last: Iteration) -> bool:
        return last.probe_ns is not None and is_slow(last.probe_ns.after, self.job.fastest_probe_ns)

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:
        """Write it down."""
        content = {k: v for k, v in answer.items() if k not in ("v", "id", "ok")}
        line = {"iteration": number, "warmup": warmup, **content}
        self._stream.write(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n")
        self._stream.flush()
        self._preemptions_known &= answer.get("preemptions") is not None
        self._probed &= warmup or bool(answer.get("probe_ns"))
        if not warmup:
            self._held.append(read_held(answer))

    def fields(self) -> dict[str, Any]:
        """Cautions, and the timeline."""
        cautions = (
            ("multi-token-deliveries", self._multi_token),
            ("preemptions-unknown", not self._preemptions_known),
            ("no-probe", not self._probed),
        )
        settled = {"figures": {SETTLED: self._settled_ns}} if self._settled_ns else {}
        codes = tuple(code for code, holds in cautions if holds)
        return {"cautions": codes, "timeline": self._packed(), "memory": memory_of(self._held), **settled}

    def _packed(self) -> Artifact | None:
        """The timeline in its final file; ``None`` for an empty one."""
        content = self._file.read_bytes() if self._file.exists() else b""
        self._file.unlink(missing_ok=True)
        return self.job.packed(self._file.name, content) if content else None
