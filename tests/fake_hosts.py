"""What called and sampled trials hold, made by hand; the fake collector asks for it where it takes such trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_collector import FakeSpec

from perfgate.calls.host_calls import Costs, FunctionCalls, HostCalls, StepCalls, StepKind
from perfgate.calls.host_profile import FIGURES, FunctionTime, HostProfile, Node
from perfgate.capture.job import Job

IDLE = {"idle": FunctionCalls()}
"""A function that was seen and never ran: steps have at least one."""


def host_calls(prefill: Mapping[str, FunctionCalls] = IDLE, **functions: FunctionCalls) -> HostCalls:
    """Ten decode steps of one iteration in which the host ran these functions, and one prefill step."""
    costs = Costs(line=15_000, call=30_000, c_call=20_000)
    steps: dict[StepKind, StepCalls] = {
        "decode": StepCalls(calls=(100,) * 10, functions={**IDLE, **functions}),
        "prefill": StepCalls(calls=(100,), functions={**prefill}),
    }
    return HostCalls(python="3.11", instrument="settrace", iterations=1, costs=costs, steps=steps)


def called(spec: FakeSpec, job: Job) -> dict[str, Any]:
    """What a counter would have counted: the same in every step and trial."""
    many: dict[StepKind, int] = {"decode": job.cell.batch.output_tokens - 1, "prefill": 1}
    lines = round(spec.truth("lines", 11_000, job.side))
    steps = {
        kind: StepCalls(
            calls=(1,) * steps,
            functions={"vllm.schedule": FunctionCalls(calls=(steps, steps), lines=(steps * lines, steps * lines))},
        )
        for kind, steps in many.items()
    }
    costs = Costs(line=15_000, call=30_000, c_call=20_000)
    return {"calls": HostCalls(python="3.11", instrument="settrace", iterations=1, costs=costs, steps=steps)}


def sampled(spec: FakeSpec, job: Job) -> dict[str, Any]:
    """What a sampler would have seen: lines of a scheduler, and a model that takes the same on both sides."""
    steps = 600
    own_ns = {
        "vllm.schedule": round(spec.truth("lines", 11_000, job.side)) * 15 * steps,
        "vllm.model": 5_000_000 * steps,
    }
    profile = HostProfile(
        steps=steps,
        period_ns=500_000,
        figures={name: steps * number for number, name in enumerate(FIGURES)},
        cpus=(0, 1),
        allowed=2,
        threads={"python": (3, 1)},
        imports={"vllm.v1": (90, 300_000), **({"scipy.stats": (120, 900_000)} if job.side == "head" else {})},
        functions={
            name: FunctionTime(samples=ns // 500_000, work_ns=ns, spread_ns=round((ns * 500_000) ** 0.5))
            for name, ns in own_ns.items()
        },
        tree=(Node(0, "vllm.step", sum(own_ns.values())), *(Node(1, name, ns) for name, ns in own_ns.items())),
    )
    return {"host": profile}
