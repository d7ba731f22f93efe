"""A collector without an engine: timed, traced, counted, called or sampled trials that look real, invented from a seed.

The same seed, side and trial index always give the same trial, in any order and on any machine.
"""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any

from perfgate.capture.job import Job
from perfgate.capture.timeline import read_iteration
from perfgate.errors import NotMeasuredError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Artifact, Failure, Kind, Startup, Trial
from perfgate.reasons import REASONS
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.units import NS_PER_S

ROLES: Mapping[str, tuple[int, float]] = {
    "gemm": (129, 4.20e-3), "attention": (65, 0.42e-3), "norm": (65, 0.22e-3), "activation": (32, 0.16e-3),
    "rope": (32, 0.10e-3), "sampler": (3, 0.05e-3),
}  # fmt: skip
"""Launches and seconds a decode step by role: the proportions of a dense 8B model."""
COUNTED: Mapping[str, float] = {
    "duration": 1.5e-5, "dram_bytes": 5.25e7, "dram_throughput": 71.0, "sm_throughput": 30.0, "occupancy": 12.0,
    "l2_hit_rate": 2.0, "registers": 168.0, "spills": 0.0, "stall_long_scoreboard": 4.0, "instructions": 1.36e6,
    "waves": 0.73, "sm_clock": 1.98e9, "dram_clock": 3.2e9,
}  # fmt: skip
"""What a launch counts, by counter, in base units: about a gemm of an 8B model on an H200."""


@dataclass(frozen=True)
class FakeStates:
    """Two states of a GPU: decode steps are longer in the slow one, and a probe tells them apart.

    Args:
        gap: By which share a decode step is longer in the slow state, from 0.
        slow_share: Probability that a trial begins slow, by side; 0 for a side not named. Where the sides differ the
            build causes it.
        sticky: Probability that a trial begins by the draw of the trial before it, so that trials of equal shares begin
            alike.
        leaves: Probability that a slow trial becomes fast within an iteration, at any of its steps; it stays so.
        probe_s: What the probe reads in the fast state, seconds.
        probe_factor: What it reads in the slow state, over that.
        probe_sd: Standard deviation of ln(reading / truth), from 0.
        mislabelled: Probability that a reading is that of the other state.
        ranks: How many ranks are probed.
    """

    gap: float = 0.033
    slow_share: Mapping[str, float] = field(default_factory=lambda: {"base": 0.5, "head": 0.5})
    sticky: float = 0.0
    leaves: float = 0.0
    probe_s: float = 220e-6
    probe_factor: float = 1.3
    probe_sd: float = 0.002
    mislabelled: float = 0.0
    ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse a side that does not exist.

        Raises:
            ValueError: There is one.
        """
        if {*self.slow_share} - {"base", "head"}:
            raise ValueError(f"no sides {', '.join(sorted(self.slow_share))}")

    def begins_slow(self, seed: int, job: Job) -> bool:
        """Whether a trial begins slow: by its own draw, or by that of the last trial before it that did not stick."""
        index = job.index
        while index and random.Random(f"sticks {seed} {index}").random() < self.sticky:  # noqa: S311 (no secret)
            index -= 1
        return random.Random(f"slow {seed} {index}").random() < self.slow_share.get(job.side, 0.0)  # noqa: S311

    def fast_from(self, iterations: int, output_tokens: int, draw: random.Random) -> tuple[int, int]:
        """Iteration and step from which on a slow trial is fast; beyond its end where it stays slow."""
        for number in range(iterations):
            if draw.random() < self.leaves:
                return number, 1 + int(draw.random() * (output_tokens - 2))
        return iterations, 0

    def readings(self, draw: random.Random, *slow: bool) -> list[list[int]]:
        """What the ranks read at each of some moments."""
        rows = []
        for true in slow:
            shown = true != (draw.random() < self.mislabelled)
            mean_ns = self.probe_s * (self.probe_factor if shown else 1.0) * NS_PER_S
            rows.append([round(mean_ns * factor(draw, self.probe_sd)) for _ in range(self.ranks)])
        return rows


@dataclass(frozen=True)
class FakeSpec:
    """What the invented builds are like.

    Args:
        step_s: True decode step of the base, seconds, above 0.
        ttft_s: True time to first token of the base, seconds, above 0.
        start_s: True start-up of the base, seconds, above 0.
        head_ratio: Head over base by quantity, ``step``, ``ttft``, ``start``, ``model_memory``, ``kv_token_capacity``,
            ``slack``, ``work``, ``lines``, a role of ``roles`` or a counter of ``counted``; 1 for those not named.
            Timed and traced trials are invented apart: a role that is slower lengthens only the traced step.
        restart_sd: Standard deviation of ln(trial / truth) between restarts, from 0.
        iteration_sd: The same between the steps and iterations of a trial, from 0.
        mode_ratio: Step of a slow restart over that of a usual one, above 0.
        mode_share: Probability that a restart is slow, by side; 0 for a side not named.
        tokens_differ: True where the head generates other tokens than the base.
        failures: Reason code by trial index; those trials fail.
        sleep_s: Real time that a trial takes, seconds.
        waits_from: Index of the first trial that takes until the run is interrupted.
        roles: Launches and seconds a decode step by role, in a traced trial of the base.
        slack_s: What the base's host has to spare in a step; the device waits where it is negative.
        work_s: How long it works in one.
        counted: What every launch of the base counts, by counter. Exact and tight counters do not vary.
        states: Those of the GPU in timed trials; ``None`` for one state and no probe.
        by_pair: Whether a trial's noise is its pair's, whichever side comes first: a run then ends as every other.
    """

    step_s: float = 5.3e-3
    ttft_s: float = 90e-3
    start_s: float = 25.0
    head_ratio: Mapping[str, float] = field(default_factory=dict)
    restart_sd: float = 0.0007
    iteration_sd: float = 0.001
    mode_ratio: float = 1.0
    mode_share: Mapping[str, float] = field(default_factory=dict)
    tokens_differ: bool = False
    failures: Mapping[int, str] = field(default_factory=dict)
    sleep_s: float = 0.0
    waits_from: float = math.inf
    roles: Mapping[str, tuple[int, float]] = field(default_factory=lambda: ROLES)
    slack_s: float = 4.2e-3
    counted: Mapping[str, float] = field(default_factory=lambda: COUNTED)
    work_s: float = 2.3e-3
    states: FakeStates | None = None
    by_pair: bool = False

    def __post_init__(self) -> None:
        """Refuse names that mean nothing here.

        Raises:
            ValueError: A quantity, side or reason code does not exist.
        """
        known = {"step", "ttft", "start", "model_memory", "kv_token_capacity", "slack", "work", "lines"}
        known |= {*self.roles, *self.counted}
        unknown = {*self.head_ratio} - known
        unknown |= {*self.mode_share} - {"base", "head"}
        unknown |= {*self.failures.values()} - {*REASONS}
        if unknown:
            raise ValueError(f"a fake has no {', '.join(sorted(unknown))}")

    def truth(self, quantity: str, base: float, side: Side) -> float:
        """The true value of a quantity on one side."""
        return base * (self.head_ratio.get(quantity, 1.0) if side == "head" else 1.0)


class FakeCollector:
    """Implements :class:`perfgate.capture.job.Collector` without starting anything.

    Args:
        spec: What the builds are like.
        seed: Everything random derives from it, the side and the trial's index.
        missing: Sides whose probe fails.
        kinds: Other specs for trials of some kinds.
    """

    def __init__(
        self,
        spec: FakeSpec | None = None,
        seed: int = 0,
        missing: tuple[Subject, ...] = (),
        kinds: Mapping[Kind, FakeSpec] | None = None,
    ) -> None:
        self.spec = spec or FakeSpec()
        self.seed = seed
        self.missing = missing
        self.kinds = kinds or {}

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
        """``subject-not-found`` for the subjects declared missing."""
        if subject in self.missing:
            return Failure(code="subject-not-found", text=f"python={subject.python}: no such program")
        return None

    def release(self) -> None:
        """Nothing is started ahead."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Invent one trial and write its timeline."""
        spec = self.kinds.get(job.kind, self.spec)
        if spec.sleep_s > 0:
            time.sleep(spec.sleep_s)
        while job.index >= spec.waits_from:
            time.sleep(spec.sleep_s)
        measured: dict[str, Any] = {"duration_ns": round(NS_PER_S), "failure": self.probe(job.cell, job.subject)}
        if measured["failure"] is None and (code := spec.failures.get(job.index)) is not None:
            text = f"a fake failure of trial {job.index}: {REASONS[code].meaning}"
            measured["failure"] = Failure(code=code, text=text)
        if measured["failure"] is None:
            number = job.pair if spec.by_pair else job.index
            draw = random.Random(f"fake {self.seed} {job.side} {number}")  # noqa: S311 (no secret)
            try:
                if job.kind == "counted":
                    measured |= resolve_name("fake_kernels:counted")(spec, job, progress, draw)
                elif job.kind == "called":
                    measured |= resolve_name("fake_hosts:called")(spec, job)
                elif job.kind == "sampled":
                    measured |= resolve_name("fake_hosts:sampled")(spec, job)
                else:
                    measured |= _measured(spec, job, progress, draw, _stated(spec, job, self.seed))
            except NotMeasuredError as error:
                measured["failure"] = Failure(code=error.code, text=error.finding)
        return job.trial(
            t0_utc=f"2026-01-01T{job.index // 60 % 24:02d}:{job.index % 60:02d}:00+00:00",
            versions={"vllm": "0.0.0+fake", "torch": "0.0.0+fake", "python": "3.11.0"},
            **measured,
        )


Stated = Callable[[int, list[float]], tuple[list[float], list[list[int]] | None]]
"""The steps of a numbered iteration as its states make them, and the probe's readings around it."""


SAME = FakeSpec(restart_sd=0.0003)
"""Two builds alike."""


class ByCell(FakeCollector):
    """A fake whose trials depend on cell, pair and build alone, so that it matters not where they are taken.

    Args:
        specs: What a cell is like, by its name; the others are the same on both sides.
    """

    def __init__(self, specs: Mapping[str, FakeSpec] | None = None) -> None:
        super().__init__(SAME)
        self.specs = specs or {}
        self.taken: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """The trial that this place in the plan has."""
        self.taken.append(job)
        place = f"{job.cell.name} {job.kind} {job.pair} {job.label}"
        fake = FakeCollector(self.specs.get(job.cell.name, SAME), zlib.crc32(place.encode()))
        return fake.collect(replace(job, index=0), progress).model_copy(update={"index": job.index})


def _stated(spec: FakeSpec, job: Job, seed: int) -> Stated:
    """What the states of the GPU do to a trial; its other draws are those of one without states."""
    states, workload, measure = spec.states, job.cell.batch, job.cell.measure
    if states is None or job.kind != "timed":
        return lambda _number, steps: (steps, None)
    draw = random.Random(f"states {seed} {job.index}")  # noqa: S311 (no secret)
    begins_slow = states.begins_slow(seed, job)
    fast_from = states.fast_from(
        measure.warmup_iterations + (job.iterations or measure.iterations), workload.output_tokens, draw
    )

    def iteration(number: int, steps: list[float]) -> tuple[list[float], list[list[int]]]:
        slow = [begins_slow and (number, step) < fast_from for step in range(len(steps) + 1)]
        longer = [step * (1.0 + states.gap * at) for step, at in zip(steps, slow, strict=False)]
        return longer, states.readings(draw, slow[0], slow[-1])

    return iteration


def _measured(
    spec: FakeSpec, job: Job, progress: Callable[[str], None], draw: random.Random, stated: Stated
) -> dict[str, Any]:
    """A timed or traced trial."""
    measure, traced = job.cell.measure, job.kind == "traced"
    count = job.iterations or measure.iterations
    if traced:
        count = job.cell.kernels.traced.iterations if job.cell.kernels else 1
    slow = spec.mode_ratio if draw.random() < spec.mode_share.get(job.side, 0.0) else 1.0
    restart = slow * factor(draw, spec.restart_sd)
    step_ns = spec.truth("step", spec.step_s, job.side) * restart * NS_PER_S
    ttft_ns = spec.truth("ttft", spec.ttft_s, job.side) * restart * NS_PER_S
    startup = _startup(spec, job.side, draw)
    now_ns = startup.ready_ns
    lines, iterations = [], []
    for number in range(measure.warmup_iterations + count):
        progress(f"iteration {number + 1} of {measure.warmup_iterations + count}")
        answer = _answer(spec, job, number, now_ns, (ttft_ns, step_ns), draw, stated)
        now_ns = answer["deliveries"][-1][0]
        warmup = number < measure.warmup_iterations
        lines.append({"iteration": number, "warmup": warmup, **answer})
        if not warmup:
            iterations.append(read_iteration(answer, job.cell.batch))
    # A fake that takes time pretends that its iterations filled the time up to now, so that telemetry fits them.
    shift_ns = time.monotonic_ns() - now_ns if spec.sleep_s > 0 else 0
    return {
        "startup": startup,
        "iterations": tuple(i.model_copy(update={"begin_ns": i.begin_ns + shift_ns}) for i in iterations),
        "timeline": _write_timeline(job, lines),
        "duration_ns": now_ns,
        "decode": resolve_name("fake_kernels:decode_steps")(spec, job.side, iterations, draw) if traced else None,
    }


def _answer(
    spec: FakeSpec,
    job: Job,
    number: int,
    begin_ns: int,
    means_ns: tuple[float, float],
    draw: random.Random,
    stated: Stated,
) -> dict[str, Any]:
    """What a worker would have answered; the first return is empty, as asynchronous scheduling has it."""
    workload, spread = job.cell.batch, spec.iteration_sd
    ttft_ns, step_ns = means_ns
    submitted = [begin_ns + 1000 * (index + 1) for index in range(workload.batch)]
    t_ns = submitted[0] + max(1000 * workload.batch + 2, round(ttft_ns * factor(draw, spread)))
    deliveries = [[(submitted[-1] + t_ns) // 2, [0] * workload.batch], [t_ns, [1] * workload.batch]]
    steps, probe_ns = stated(number, [step_ns * factor(draw, spread) for _ in range(workload.output_tokens - 1)])
    for step in steps:
        t_ns += max(1, round(step))
        deliveries.append([t_ns, [1] * workload.batch])
    side = job.side if spec.tokens_differ else "base"
    return {
        "submitted_ns": submitted,
        "deliveries": deliveries,
        "tokens_digest": sha256_hex(f"tokens of {side} in iteration {number} of seed {workload.seed}"),
        "finish_reasons": ["length"] * workload.batch,
        "preemptions": 0,
        **({"probe_ns": probe_ns} if probe_ns else {}),
    }


def factor(draw: random.Random, sd: float) -> float:
    """A log-normal factor with median 1."""
    return math.exp(draw.gauss(0.0, sd)) if sd else 1.0


def _startup(spec: FakeSpec, side: Side, draw: random.Random) -> Startup:
    ready_ns = spec.truth("start", spec.start_s, side) * factor(draw, spec.restart_sd) * NS_PER_S
    return Startup(
        import_ns=round(0.6 * ready_ns),
        engine_ns=round(0.3 * ready_ns),
        ready_ns=round(ready_ns),
        model_memory_bytes=round(spec.truth("model_memory", 16e9, side)),
        kv_token_capacity=round(spec.truth("kv_token_capacity", 65536, side)),
    )


def _write_timeline(job: Job, lines: list[dict[str, Any]]) -> Artifact:
    text = "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)
    return job.packed("timeline.jsonl", text.encode())
