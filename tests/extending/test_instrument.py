"""A profiler is added: a toy one takes the traced trials, and a gate on kernels is judged by what it saw."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from decode_steps import decode
from hand_made import scenario_file
from stub_engine import bare_python
from toy_driver import ToyDriver

from perfgate import gate
from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.drivers import DRIVERS
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.timeline import InvalidTrialError
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.sides import Side
from perfgate.scenario.subject import Subject
from perfgate.trace.decode_step import DecodeSteps

pytestmark = pytest.mark.usefixtures("no_orphans")


class ToyProfiler(Instrument):
    """Has the engine write a trace, and reads it."""

    name, report_s = "toy profiler", 1.0
    decode: DecodeSteps | None = None

    @property
    def trace(self) -> Path:
        """Where."""
        return self.job.folder.resolve() / "toy.json"

    def prepare(self) -> Launch:
        """The engine is told by an argument."""
        return Launch(engine_args={"toy_trace": str(self.trace)})

    def window(self, engine: Engine, *, on: bool) -> None:
        """Around the measured iterations."""
        engine.profile(on=on, ranges="toy", window=True)

    def collect(self, say: Say) -> None:
        """A profiler that leaves no trace has not measured."""
        say("reading the toy's trace")
        if not self.trace.exists():
            raise InvalidTrialError("evidence-missing", "the toy left no trace")
        times_ns = json.loads(self.trace.read_text())
        self.decode = decode([(family, f"{family}_kernel", ns) for family, ns in times_ns.items()])

    def fields(self) -> dict[str, Any]:
        """Decode steps, where there are any."""
        return {"decode": self.decode}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine and profiler are toys."""
    monkeypatch.setitem(DRIVERS, "vllm", ToyDriver)
    monkeypatch.setattr("perfgate.doctor.preflight.locate", lambda *_: "toys are in no environment")
    toy = replace(TRIAL_KINDS["traced"], instrument=f"{__name__}:ToyProfiler")
    monkeypatch.setitem(TRIAL_KINDS, "traced", toy)


def finish(folder: Path, head_us: int) -> gate.Finished:
    """A run of kernels alone; the gemm of a step takes almost all of it."""
    gates = "{metric: kernel_time_per_step, role: gemm, ignorable: 0.2%, must_catch: 1%}"
    scenario = scenario_file(folder, gates=gates, more="kernels: {traced: {iterations: 1}}")
    python = bare_python(folder / "env")
    subjects: dict[Side, Subject] = {
        "base": Subject(python=python, args={"step_us": 1000}),
        "head": Subject(python=python, args={"step_us": head_us}),
    }
    return gate.run([scenario], subjects, runs=folder / "runs", seed=1)


@pytest.mark.parametrize(("head_us", "verdict"), [(1000, "pass"), (1020, "regressed")])
def test_a_profiler_takes_a_run_to_its_verdict(tmp_path: Path, head_us: int, verdict: str) -> None:
    """What it saw decides the gate."""
    assert finish(tmp_path, head_us).outcome.verdict == verdict
