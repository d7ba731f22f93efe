"""What the fake collector's traced and counted trials hold: decode steps and counters that look real."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from fake_collector import FakeSpec, factor

from perfgate.capture.job import Job
from perfgate.counters.launch_table import COUNTERS, Device, KernelLaunch
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import NotMeasuredError
from perfgate.kernels.launch_window import choose_window
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Iteration
from perfgate.reasons import REASONS
from perfgate.trace.decode_step import STEADY, DecodeSteps, KernelKey, Pattern
from perfgate.units import NS_PER_S

IDLE_S = 0.15e-3
"""Idle time of a step, inside its graph."""

H200 = Device(name="NVIDIA H200", architecture=90, bus_bits=6016.0, memory_hz=3.201e9, sm_hz=1.98e9)


def decode_steps(spec: FakeSpec, side: Side, iterations: Sequence[Iteration], draw: random.Random) -> DecodeSteps:
    """What a profiler would have seen: the declared roles, each a kernel of its own, in one graph a step."""
    count, restart = sum(len(one.itl_ns) for one in iterations), factor(draw, spec.restart_sd)
    truths = {name: spec.truth(name, seconds, side) * restart for name, (_, seconds) in spec.roles.items()}

    def column(true_s: float) -> tuple[int, ...]:
        return tuple(round(true_s * factor(draw, spec.iteration_sd) * NS_PER_S) for _ in range(count))

    role_ns = {name: column(true_s) for name, true_s in truths.items()}
    slack_s = spec.truth("slack", spec.slack_s, side) * restart
    slack_ns, idle_ns, between_ns = column(slack_s), column(IDLE_S), column(max(0.0, -slack_s))
    kernel_ns = tuple(map(sum, zip(*role_ns.values(), strict=True)))
    span_ns = tuple(kernel + idle for kernel, idle in zip(kernel_ns, idle_ns, strict=True))
    launches = [launches for launches, _ in spec.roles.values()]
    return DecodeSteps(
        source="fake",
        keys=tuple(KernelKey(role=name, name=f"{name}_kernel") for name in spec.roles),
        patterns=(Pattern(steps=count, kernels=tuple(n for n, times in enumerate(launches) for _ in range(times))),),
        step_ns=(*(span + between for span, between in zip(span_ns[:-1], between_ns[:-1], strict=True)), None),
        span_ns=span_ns,
        busy_ns=kernel_ns,
        kernel_ns=kernel_ns,
        slack_ns=(None, *slack_ns[1:]),
        work_ns=column(spec.truth("work", spec.work_s, side) * restart),
        held=STEADY,
        call_ns=tuple(0 for _ in range(count)),
        gap_ns={"graph": idle_ns},
        role_ns=role_ns,
        key_launches=tuple(times * count for times in launches),
        key_ns=tuple(sum(column) for column in role_ns.values()),
    )


def counted(spec: FakeSpec, job: Job, progress: Callable[[str], None], draw: random.Random) -> dict[str, Any]:
    """What ncu would have counted: every launch the same, only noisy counters vary.

    Raises:
        NotMeasuredError: No traced trial shows the launches asked for.
    """
    if job.decode is None:
        raise NotMeasuredError(REASONS["counters-missing"].meaning, code="counters-missing")
    window, keys = choose_window(job.decode, job.cell.counters), job.decode.keys
    progress(f"{window.count} launches")
    names = {name: COUNTERS[name].names_on(H200.architecture)[0].metric for name in spec.counted}

    def values() -> dict[str, float]:
        return {
            names[name]: spec.truth(name, value, job.side)
            * (factor(draw, spec.iteration_sd) if COUNTERS[name].tier == "noisy" else 1.0)
            for name, value in spec.counted.items()
        }

    layers = window.pattern.layers()
    step = CountedStep(
        source="fake",
        step=job.cell.counted.step or 1,
        cache_control=job.cell.counted.cache_control,
        passes=11,
        device=H200,
        units={names[name]: COUNTERS[name].unit for name in spec.counted},
        launches=tuple(
            KernelLaunch(key=keys[window.pattern.kernels[position]], position=position, layer=layers[position],
                   grid=(4, 24, 1), block=(384, 1, 1), values=values())
            for position in window.positions
        ),
    )  # fmt: skip
    return {"counted": step}
