"""A collector without an engine: trials that look real, invented from a seed. For tests and documentation.

The same seed, side and trial index always give the same trial, in any order and on any machine.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgate.capture.collector import Job
from perfgate.capture.timeline import read_iteration
from perfgate.plan import Cell
from perfgate.reasons import REASONS
from perfgate.record import Artifact, Failure, Startup, Trial, sha256_hex
from perfgate.subject import Role, Subject

NS_PER_S = 1e9


@dataclass(frozen=True)
class FakeSpec:
    """What the invented builds are like.

    Args:
        step_s: True decode step of the base, seconds, above 0.
        ttft_s: True time to first token of the base, seconds, above 0.
        start_s: True start-up of the base, seconds, above 0.
        head_ratio: Head over base by quantity, ``step``, ``ttft``, ``start``, ``model_memory``, ``kv_token_capacity``;
            1 for those not named.
        restart_sd: Standard deviation of ln(trial / truth) between restarts, from 0.
        iteration_sd: The same between the steps and iterations of a trial, from 0.
        mode_ratio: Step of a slow restart over that of a usual one, above 0.
        mode_share: Probability that a restart is slow, by side; 0 for a side not named.
        tokens_differ: True where the head generates other tokens than the base.
        failures: Reason code by trial index; those trials fail.
        sleep_s: Real time that a trial takes, seconds.
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

    def __post_init__(self) -> None:
        """Refuse names that mean nothing here.

        Raises:
            ValueError: A quantity, side or reason code does not exist.
        """
        unknown = {*self.head_ratio} - {"step", "ttft", "start", "model_memory", "kv_token_capacity"}
        unknown |= {*self.mode_share} - {"base", "head"}
        unknown |= {*self.failures.values()} - {*REASONS}
        if unknown:
            raise ValueError(f"a fake has no {', '.join(sorted(unknown))}")

    def truth(self, quantity: str, base: float, role: Role) -> float:
        """The true value of a quantity on one side."""
        return base * (self.head_ratio.get(quantity, 1.0) if role == "head" else 1.0)


class FakeCollector:
    """Implements :class:`perfgate.capture.collector.Collector` without starting anything.

    Args:
        spec: What the builds are like.
        seed: Everything random derives from it, the side and the trial's index.
        missing: Sides whose probe fails.
    """

    kind = "timed"

    def __init__(self, spec: FakeSpec | None = None, seed: int = 0, missing: tuple[Subject, ...] = ()) -> None:
        self.spec = spec or FakeSpec()
        self.seed = seed
        self.missing = missing

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
        """``subject-not-found`` for the subjects declared missing."""
        if subject in self.missing:
            return Failure(code="subject-not-found", text=f"python={subject.python}: no such program")
        return None

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Invent one trial and write its timeline."""
        if self.spec.sleep_s > 0:
            time.sleep(self.spec.sleep_s)
        code = self.spec.failures.get(job.index)
        failure = self.probe(job.cell, job.subject)
        if failure is None and code is not None:
            failure = Failure(code=code, text=f"a fake failure of trial {job.index}: {REASONS[code].meaning}")
        if failure is not None:
            return self._trial(job, failure=failure, duration_ns=round(NS_PER_S))
        return self._measured(job, progress)

    def _measured(self, job: Job, progress: Callable[[str], None]) -> Trial:
        spec, measure = self.spec, job.cell.measure
        draw = random.Random(f"fake {self.seed} {job.role} {job.index}")  # noqa: S311 (no secret)
        slow = spec.mode_ratio if draw.random() < spec.mode_share.get(job.role, 0.0) else 1.0
        restart = slow * _factor(draw, spec.restart_sd)
        step_ns = spec.truth("step", spec.step_s, job.role) * restart * NS_PER_S
        ttft_ns = spec.truth("ttft", spec.ttft_s, job.role) * restart * NS_PER_S
        startup = _startup(spec, job.role, draw)
        now_ns = startup.ready_ns
        lines, iterations = [], []
        for number in range(measure.warmup_iterations + measure.iterations):
            progress(f"iteration {number + 1} of {measure.warmup_iterations + measure.iterations}")
            answer = self._answer(job, number, now_ns, (ttft_ns, step_ns), draw)
            now_ns = answer["deliveries"][-1][0]
            warmup = number < measure.warmup_iterations
            lines.append({"iteration": number, "warmup": warmup, **answer})
            if not warmup:
                iterations.append(read_iteration(answer, job.cell.workload))
        # A fake that takes time pretends that its iterations filled the time up to now, so that telemetry fits them.
        shift_ns = time.monotonic_ns() - now_ns if spec.sleep_s > 0 else 0
        return self._trial(
            job,
            startup=startup,
            iterations=tuple(i.model_copy(update={"begin_ns": i.begin_ns + shift_ns}) for i in iterations),
            timeline=_write_timeline(job, lines),
            duration_ns=now_ns,
        )

    def _answer(
        self, job: Job, number: int, begin_ns: int, means_ns: tuple[float, float], draw: random.Random
    ) -> dict[str, Any]:
        """What a worker would have answered; the first return is empty, as asynchronous scheduling has it."""
        workload, spread = job.cell.workload, self.spec.iteration_sd
        ttft_ns, step_ns = means_ns
        submitted = [begin_ns + 1000 * (index + 1) for index in range(workload.batch)]
        t_ns = submitted[0] + max(1000 * workload.batch + 2, round(ttft_ns * _factor(draw, spread)))
        deliveries = [[(submitted[-1] + t_ns) // 2, [0] * workload.batch], [t_ns, [1] * workload.batch]]
        for _ in range(workload.output_tokens - 1):
            t_ns += max(1, round(step_ns * _factor(draw, spread)))
            deliveries.append([t_ns, [1] * workload.batch])
        side = job.role if self.spec.tokens_differ else "base"
        return {
            "submitted_ns": submitted,
            "deliveries": deliveries,
            "tokens_digest": sha256_hex(f"tokens of {side} in iteration {number} of seed {workload.seed}"),
            "finish_reasons": ["length"] * workload.batch,
            "preemptions": 0,
        }

    def _trial(self, job: Job, **measured: Any) -> Trial:
        return job.trial(
            t0_utc=f"2026-01-01T{job.index // 60 % 24:02d}:{job.index % 60:02d}:00+00:00",
            versions={"vllm": "0.0.0+fake", "torch": "0.0.0+fake", "python": "3.11.0"},
            **measured,
        )


def _factor(draw: random.Random, sd: float) -> float:
    """A log-normal factor with median 1."""
    return math.exp(draw.gauss(0.0, sd)) if sd else 1.0


def _startup(spec: FakeSpec, role: Role, draw: random.Random) -> Startup:
    ready_ns = spec.truth("start", spec.start_s, role) * _factor(draw, spec.restart_sd) * NS_PER_S
    return Startup(
        import_ns=round(0.6 * ready_ns),
        engine_ns=round(0.3 * ready_ns),
        ready_ns=round(ready_ns),
        model_memory_bytes=round(spec.truth("model_memory", 16e9, role)),
        kv_token_capacity=round(spec.truth("kv_token_capacity", 65536, role)),
    )


def _write_timeline(job: Job, lines: list[dict[str, Any]]) -> Artifact:
    text = "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)
    packed = gzip.compress(text.encode(), mtime=0)
    file = job.folder / "timeline.jsonl.gz"
    file.write_bytes(packed)
    return Artifact(path=file.relative_to(job.run_folder).as_posix(), sha256=sha256_hex(packed))
