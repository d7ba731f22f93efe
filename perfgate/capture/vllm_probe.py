"""A fixed piece of work, timed in every rank: it tells in which state a GPU is, and knows nothing of the build.

On some hosts the gaps between the kernels of a CUDA graph have two lengths, and a GPU jumps from one to the other. A
graph of tiny kernels is little else than such gaps. Where there is no CUDA a loop of Python takes its place.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. What runs in a rank travels there by value, because no rank can import this file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

SWITCH = "PERFGATE_PROBE"
"""Variable of the engine; with ``0`` nothing is probed."""
KERNELS = 200
"""So many launches that their gaps differ by 70 us between the states of an H200; three replays stay below 1 ms."""
REPLAYS = 2
LOOPS, ROUNDS = 6000, 3
"""Of the loop without CUDA: about 0.3 ms a round."""


class StateProbe:
    """Readings of all ranks of one engine; once one has failed there are no more.

    Args:
        call_ranks: Calls a function in each rank, given the engine and the function.
    """

    def __init__(self, call_ranks: Callable[..., list[Any]]) -> None:
        self.call_ranks = call_ranks
        self.off = os.environ.get(SWITCH) == "0"

    def read(self, engine: Any) -> list[int]:
        """One reading a rank, in nanoseconds; empty where there are none, and then the log says why."""
        if self.off:
            return []
        try:
            readings = self.call_ranks(engine, read_rank)
        except Exception as error:  # noqa: BLE001 (whatever it is, the trial goes on without readings)
            readings = [describe(error)]
        if readings and all(type(reading) is int for reading in readings):
            return readings
        self.off = True
        sys.stderr.write(f"perfgate: no probe: {readings or 'ranks are out of reach'}\n")
        sys.stderr.flush()
        return []


def read_rank(worker: Any) -> int | str:
    """One reading in this rank, or what failed; called by vLLM.

    Nothing is raised: vLLM would leave the other ranks' answers unread, and take them for those to its next call.
    """
    kept = vars(worker)
    try:
        if "perfgate_probe" not in kept:
            kept["perfgate_probe"] = prepare()
        return int(kept["perfgate_probe"]())
    except Exception as error:  # noqa: BLE001 (told to the rank that asked)
        return describe(error)


def describe(error: Exception) -> str:
    """``Type: message``."""
    return f"{type(error).__name__}: {error}"


def prepare() -> Callable[[], int]:
    """What takes a reading in this process."""
    import torch

    return GraphProbe().read if torch.cuda.is_initialized() else time_loop


class GraphProbe:
    """A CUDA graph of tiny kernels.

    ``torch.cuda.graph`` would give the allocator's free memory back to the driver, and the engine would ask for it
    again. Only this thread is watched while it captures: others may allocate.
    """

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.number = torch.zeros(32, dtype=torch.float32, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            self.number.add_(1)  # loads the kernel, which is not allowed in a capture
            torch.cuda.synchronize()
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(KERNELS):
                    self.number.add_(1)
            finally:
                self.graph.capture_end()

    def read(self) -> int:
        """The shorter time of two replays in nanoseconds, by CUDA's events, in the stream of the engine's own graphs.

        The one before them is not timed. While the GPU is busy with it the others are submitted, so that neither waits
        for the host.
        """
        self.cuda.synchronize()
        self.graph.replay()
        for begin, end in self.events:
            begin.record()
            self.graph.replay()
            end.record()
        self.cuda.synchronize()
        return int(1e6 * min(begin.elapsed_time(end) for begin, end in self.events))


def time_loop() -> int:
    """The shortest time of a fixed loop."""
    times = []
    for _ in range(ROUNDS):
        begin_ns = time.perf_counter_ns()
        total = 0
        for number in range(LOOPS):
            total += number * number
        times.append(time.perf_counter_ns() - begin_ns)
    return min(times)
