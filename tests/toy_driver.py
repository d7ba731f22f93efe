"""An engine of a few lines with a driver: it takes no time, and a subject's arguments say how fast it is."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.job import Job
from perfgate.capture.timeline import ANY_TIME, InvalidTrialError, Span
from perfgate.capture.worker import Limit
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import Failure, Startup
from perfgate.models import Strict
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload


class ToyEngine:
    """Steps of ``step_us`` each; with ``toy_trace`` it writes there what the kernels of a step take."""

    def __init__(self, arguments: dict[str, Any], restart: float) -> None:
        self.versions = {"toy": "1.0"}
        self.startup = Startup(import_ns=1, engine_ns=1, ready_ns=3)
        self.arguments = arguments
        self.step_ns = round(arguments["step_us"] * 1000 * restart)

    def iterate(
        self, workload: Strict, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """All requests get a token at every step."""
        assert limit is None
        assert isinstance(workload, Workload)
        if self.arguments.get("breaks_at") == number:
            raise InvalidTrialError("engine-failed", "the toy broke")
        steps = range(1, workload.output_tokens + 1)
        answer = {
            "submitted_ns": [0] * workload.batch,
            "deliveries": [[step * self.step_ns, [1] * workload.batch] for step in steps],
            "tokens_digest": sha256(b"%d" % number).hexdigest(),
            "finish_reasons": ["length"] * workload.batch,
            "preemptions": 0,
            "probe_ns": [[1000], [1000]] if probe else None,
        }
        return answer, ANY_TIME

    def wait_alone(self) -> None:
        """Nothing is started ahead."""

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """Write the trace when the window closes."""
        assert (ranges, window) == ("toy", True)
        if not on:
            Path(self.arguments["toy_trace"]).write_text(json.dumps({"gemm": self.step_ns - 1000, "norm": 1000}))

    def stop(self, exit_timeout_s: float = 1.0) -> tuple[ProcessUse, ...]:
        """Nothing is there to be stopped."""
        assert exit_timeout_s > 0
        return ()


class ToyDriver:
    """Starts toys; each restart is a little slower or faster than the last."""

    def probe(self, subject: Subject) -> Failure | None:
        """Toys are always there."""
        assert subject.python
        return None

    def release(self) -> None:
        """Nothing is started ahead."""

    @contextlib.contextmanager
    def start(self, job: Job, launch: Launch) -> Iterator[Engine]:
        """A toy."""
        yield ToyEngine({**job.engine_args, **launch.engine_args}, random.Random(job.index).gauss(1.0, 0.0005))  # noqa: S311
