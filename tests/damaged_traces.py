"""Small whole traces of decode steps, as PyTorch's profiler and nsys write them, and what damages them at random.

Each step launches a graph of two layers and a sampler, or all of its kernels one by one. Times are microseconds.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nsys_builder import ExportBuilder

Event = dict[str, Any]
LAYER: Final = (
    "void rms_norm_kernel<c10::BFloat16>(x)", "nvjet_tst_64x64_qkv", "rotary_embedding_kernel",
    "reshape_and_cache_flash_kernel", "flash_fwd_splitkv_kernel", "nvjet_tst_64x64_out",
    "void fused_add_rms_norm_kernel<c10::BFloat16>(x)", "nvjet_tst_128x64_gateup", "act_and_mul_kernel",
    "nvjet_tst_64x128_down",
)  # fmt: skip
SAMPLER: Final = "at::native::(anonymous namespace)::softmax_argmax_sampler_kernel"
LAYERS, KERNEL_US, GAP_US, STEP_US, BEGIN_US = 2, 10, 1, 1000, 1_000_000
SORTS: Final = ("graph", "hip-graph", "eager")
"""Graphs whose kernels name them, graphs whose kernels do not (ROCm), and no graph."""


def event(category: str, name: str, ts: float, dur: float, pid: int, **arguments: Any) -> Event:
    """A complete event."""
    tid = arguments.get("stream", pid)
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": arguments}


def whole_trace(
    sort: str, steps: int = 6, *, pid: int = 100, device: int = 0, kernel_us: int = KERNEL_US
) -> list[Event]:
    """The events of a rank whose steps are all whole."""
    events, number = [], 0
    maker = "hip" if sort == "hip-graph" else "cuda"

    def ran(name: str, at: float, correlation: int, **more: Any) -> None:
        shape = {"grid": [8, 1, 1], "block": [128, 1, 1]}
        where = {"device": device, "stream": 7, "correlation": correlation}
        events.append(event("kernel", name, at, kernel_us, device, **where, **shape, **more))

    for step in range(steps):
        at = BEGIN_US + step * STEP_US
        events.append(event("user_annotation", "execute_context_0(0)_generation_8(8)", at, 400, pid))
        if sort != "eager":
            number += 1
            events.append(event("cuda_runtime", f"{maker}GraphLaunch", at + 10, 20, pid, correlation=number))
        for place, name in enumerate(LAYERS * LAYER):
            begin = at + 100 + place * (kernel_us + GAP_US)
            if sort == "eager":
                number += 1
                events.append(
                    event("cuda_runtime", "cudaLaunchKernel", at + 10 + 3 * place, 2, pid, correlation=number)
                )
            node = {"graph id": 3, "graph node id": place + 1} if sort == "graph" else {}
            ran(name, begin, number, **node)
        number += 1
        events.append(event("cuda_runtime", f"{maker}LaunchKernel", at + 350, 5, pid, correlation=number))
        ran(SAMPLER, at + 500, number)
    return events


def write_events(file: Path, events: list[Event]) -> Path:
    """A Chrome trace."""
    devices = [{"id": 0, "name": "NVIDIA H100"}]
    file.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}))
    return file


def write_export(file: Path, events: list[Event]) -> Path:
    """The same as nsys exports it."""
    builder = ExportBuilder("2024.2")
    for one in events:
        start, end = round(one["ts"] * 1000), round((one["ts"] + one["dur"]) * 1000)
        told, pid = one["args"], one["pid"]
        if one["cat"] == "user_annotation":
            builder.span(one["name"], start, end, pid=pid)
        elif one["cat"] == "cuda_runtime":
            builder.call(one["name"], start, end, pid=pid)
            builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["correlationId"] = told["correlation"]
        else:
            node = (told["graph id"] << 32) + told["graph node id"] if "graph id" in told else None
            where = {"pid": told.get("owner", 100), "device": told["device"], "stream": told["stream"], "node": node}
            builder.kernel(one["name"], start, end, told["correlation"], **where)
    file.unlink(missing_ok=True)
    return builder.write(file)


def kernels_of(events: list[Event]) -> list[Event]:
    """Those that ran on a device, in order of time."""
    return sorted((one for one in events if one["cat"] == "kernel"), key=lambda one: one["ts"])


def drop(events: list[Event], dice: random.Random) -> list[Event]:
    """Lose one kernel, some here and there, a stretch of them, or every second."""
    ran = kernels_of(events)
    how = dice.choice(("one", "some", "stretch", "second"))
    if how == "one":
        lost = [dice.choice(ran)]
    elif how == "some":
        share = dice.choice((0.02, 0.1, 0.5))
        lost = [one for one in ran if dice.random() < share] or [dice.choice(ran)]
    elif how == "stretch":
        first = dice.randrange(len(ran))
        lost = ran[first : first + dice.randint(1, len(ran) // 2)]
    else:
        lost = ran[dice.randint(0, 1) :: 2]
    gone = {id(one) for one in lost}
    return [one for one in events if id(one) not in gone]


def zero(events: list[Event], dice: random.Random) -> list[Event]:
    """Set the start, the duration or both of one kernel or some to nothing, or the duration to seconds or days."""
    chosen = dice.sample(kernels_of(events), dice.choice((1, 1, 3, 10)))
    how = dice.choice(("both", "start", "duration", "seconds", "days", "negative"))
    for one in chosen:
        if how in ("both", "start"):
            one["ts"] = 0
        if how in ("both", "duration"):
            one["dur"] = 0
        if how in ("seconds", "days", "negative"):
            one["dur"] = {"seconds": 2e6, "days": 610_000e6, "negative": -one["dur"]}[how]
    return events


def overlap(events: list[Event], dice: random.Random) -> list[Event]:
    """Have one kernel or some last into the next one, or beyond it."""
    ran = kernels_of(events)
    for place in dice.sample(range(len(ran) - 1), dice.choice((1, 1, 3, 10))):
        one, after = ran[place], ran[place + 1]
        one["dur"] = after["ts"] - one["ts"] + dice.choice((0.3, 0.7, 1.5, 12, 30)) * after["dur"]
    return events


def mix(events: list[Event], dice: random.Random) -> list[Event]:
    """Put the events of a second rank into the file: as another process, or as the same one."""
    pid, device = dice.choice(((100, 0), (101, 0), (100, 1)))
    sort = "eager" if not any("GraphLaunch" in one["name"] for one in events) else "graph"
    late = dice.choice((0, 3.5, 40, 300))
    other = whole_trace(sort, dice.randint(3, 6), pid=pid, device=device, kernel_us=dice.choice((10, 11, 14)))
    for one in other:
        one["ts"] += late
        if one["cat"] == "kernel":
            one["args"]["owner"] = pid
    return [*events, *other]


DAMAGES: Final[dict[str, Callable[[list[Event], random.Random], list[Event]]]] = {
    "kernels dropped": drop, "times zeroed": zero, "overlaps": overlap, "ranks mixed": mix,
}  # fmt: skip


def damaged(events: list[Event], how: str, dice: random.Random) -> list[Event]:
    """A damaged copy."""
    return DAMAGES[how](copy.deepcopy(events), dice)
