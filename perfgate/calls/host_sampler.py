"""Where the engine's own thread spends each step: its stack at a fixed rate, and what the system did meanwhile.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10.

A timer's signal interrupts the thread, and Python runs the handler at the next call of a function, return of a C
function or jump back: so a loop without a call is seen, and what C does counts for the function that called it. A
stretch of a function with none of these counts for what comes next. Each tick that passed meanwhile counts, so that
long calls of C weigh what they take.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PERIOD_NS = 250_000
"""Some ten microseconds of each are the handler's."""
FIGURES = ("wall_ns", "thread_ns", "process_ns", "minor_faults", "major_faults", "waits", "preemptions", "cpu")
"""Of a step, see :func:`reading`; then how often the collector ran in it, and for how many nanoseconds."""
clock = time.perf_counter_ns


class HostSampler:
    """Samples the steps of one engine; made before it starts.

    Args:
        plain: Takes from a function's name what does not tell the function.
    """

    def __init__(self, plain: Callable[[str], str]) -> None:
        self.plain = plain
        self.names: dict[int, tuple[int, Any]] = {}
        self.frames: list[str] = []
        self.stacks: dict[tuple[int, ...], int] = {}
        self.cpu = ctypes.CDLL(None).sched_getcpu
        self.collected = [0, 0, 0]
        self.outermost: Any = None
        gc.callbacks.append(self.collects)

    def collects(self, phase: str, _info: Any) -> None:
        """The collector begins or ends; in whichever thread, the others wait for it."""
        if phase == "start":
            self.collected[2] = clock()
        else:
            self.collected[0] += 1
            self.collected[1] += clock() - self.collected[2]

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """``step``, sampled from now until the report."""
        self.samples: list[tuple[int, int, int, int]] = []
        self.steps: list[list[int]] = []
        self.is_inside = self.is_ticking = False
        self.before = signal.signal(signal.SIGALRM, self.tick)
        self.begun_ns = self.last_ns = clock()
        self.ticks, self.last_thread_ns = 0, time.thread_time_ns()
        signal.setitimer(signal.ITIMER_REAL, PERIOD_NS / 1e9, PERIOD_NS / 1e9)

        def sampled() -> Any:
            collected = self.collected[:2]
            begun = reading(self.cpu())
            self.is_inside = True
            try:
                given = step()
            except BaseException:
                self.rest()
                raise
            self.is_inside = False
            ended = reading(self.cpu())
            spent = [after - before for before, after in zip(begun, ended)]  # noqa: B905 (3.10)
            gone = [after - before for before, after in zip(collected, self.collected)]  # noqa: B905 (3.10)
            self.steps.append([*spent[:-1], ended[-1], *gone])
            return given

        self.outermost = sampled.__code__
        return sampled

    def tick(self, _number: int, frame: Any) -> None:
        """Ticks have passed: the frame that runs has them all."""
        if self.is_ticking:  # where the handler takes longer than a tick
            return
        self.is_ticking = True
        now_ns, thread_ns = clock(), time.thread_time_ns()
        ticks = (now_ns - self.begun_ns) // PERIOD_NS
        if self.is_inside and ticks > self.ticks:
            stack = []
            while frame is not None and frame.f_code is HostSampler.tick.__code__:  # it had not quite ended
                frame = frame.f_back
            while frame is not None and frame.f_code is not self.outermost:
                stack.append(self.frame(frame))
                frame = frame.f_back
            place = tuple(reversed(stack))
            wall_ns = (ticks - self.ticks) * PERIOD_NS
            worked = (thread_ns - self.last_thread_ns) / max(now_ns - self.last_ns, 1)
            number = self.stacks.setdefault(place, len(self.stacks))
            self.samples.append((len(self.steps), number, wall_ns, int(wall_ns * min(max(worked, 0.0), 1.0))))
        self.ticks = ticks
        self.last_ns, self.last_thread_ns = clock(), time.thread_time_ns()
        self.is_ticking = False

    def frame(self, frame: Any) -> int:
        """The number of a function, which is kept so that none takes its place."""
        code = frame.f_code
        entry = self.names.get(id(code))
        if entry is None:
            name = f"{frame.f_globals.get('__name__') or ''}.{getattr(code, 'co_qualname', code.co_name)}"  # from 3.11
            entry = self.names[id(code)] = (len(self.frames), code)
            self.frames.append(self.plain(name))
        return entry[0]

    def rest(self) -> None:
        """No more ticks."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def report(self, begin: int) -> dict[str, Any]:
        """Samples from step ``begin`` on as step, stack, ticks' time and how much was work; figures of each step."""
        self.rest()
        stacks = [list(stack) for stack in self.stacks]
        samples = [sample for sample in self.samples if sample[0] >= begin]
        return {
            "period_ns": PERIOD_NS, "frames": self.frames, "stacks": stacks, "samples": samples,
            "steps": self.steps, "threads": threads(), "cpus": sorted(os.sched_getaffinity(0)),
        }  # fmt: skip


def reading(cpu: int) -> list[int]:
    """The clocks of thread and process, faults of the process, and how often the thread waited or was preempted."""
    process, thread = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_THREAD)
    return [clock(), time.thread_time_ns(), time.process_time_ns(), process.ru_minflt, process.ru_majflt,
            thread.ru_nvcsw, thread.ru_nivcsw, cpu]  # fmt: skip


def threads() -> dict[str, list[int]]:
    """How many threads of each name there are, and on how many CPUs they may run, the fewest of them."""
    seen: dict[str, list[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, allowed = (
                (task / "comm").read_text("utf-8", "replace").strip() or "?",
                os.sched_getaffinity(int(task.name)),
            )
        except OSError:  # it has ended
            continue
        number, fewest = seen.get(name, [0, len(allowed)])
        seen[name] = [number + 1, min(fewest, len(allowed))]
    return seen
