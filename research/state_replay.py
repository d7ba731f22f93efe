"""Replay a graph like a decode step and a small probe graph by turns on one GPU, try leads, and time all of it.

One process of ``research/gpu_states.py``, which starts it; needs torch with CUDA, and reads clocks where pynvml is
there. A batch is one row of replays in the stream, so that the host runs ahead and no launch waits for it. Each is
timed by events: the step, the probe right after it, and the probe once more. The step reads 15 GB of weights, far more
than the second-level cache holds, so the first probe meets the cache as the step left it, and the second one finds what
its own launches need there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import gzip
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

COLUMNS = (
    "gpu", "process", "stretch", "lead", "batch", "at_s", "step_us", "probe_us", "again_us",
    "sm_mhz", "memory_mhz", "video_mhz", "power_w", "celsius", "pcie_generation", "pcie_tx_mb", "pcie_rx_mb",
)  # fmt: skip
"""Of the readings: a row a replay; the GPU's own figures are in the first row of a batch that read them."""
LAYERS, HIDDEN, QKV, FORWARD, VOCABULARY, BATCH = 32, 4096, 6144, 14336, 128256, 8
"""Shapes of a dense 8B model."""
STEP_KERNELS = LAYERS * 13 + 3
"""Calls that a step makes; a gemm of several kernels makes more launches of it, see :meth:`Gpu.kernels`."""
PROBE_KERNELS = 300
COMPANIONS = Path(__file__).with_name("state_companions.py")
REPLAYS = 16
"""Of a batch, about 0.1 s."""
CLOCKS_S = 1.0
"""How often the GPU's own figures are read."""
BLOCKING_SYNC = 4
"""``cudaDeviceScheduleBlockingSync``."""


class UnavailableError(Exception):
    """A lead that cannot be tried here, and why."""


class Replayer(Protocol):
    """What is timed, and what can be done to it."""

    def batch(self) -> tuple[list[tuple[float, float, float]], Mapping[str, float]]:
        """Microseconds of step, probe and probe again for each replay, and the GPU's own figures if they were read."""

    def act(self, lead: str) -> None:
        """Do what a lead names.

        Raises:
            UnavailableError: It cannot be done here.
        """


Note = Callable[[dict[str, Any]], None]


def follow(
    replayer: Replayer, leads: Sequence[str], labels: Mapping[str, Any], until: tuple[float, float], *,
    write: Callable[[dict[str, Any]], object], note: Note, clock: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Act on each lead in turn and time replays for a stretch after each; the first lead names how the process began.

    Args:
        replayer: What is timed.
        leads: In order. The first is not acted on: the process itself is what it names.
        labels: Columns that all rows share.
        until: Seconds of a stretch, and the time on ``clock`` after which no stretch is begun.
        write: Gets each reading, a column a key.
        note: Gets what was skipped, as a line.
        clock: Seconds.
    """
    stretch_s, deadline_s = until
    batches = itertools.count()
    for stretch, lead in enumerate(leads):
        if clock() + stretch_s > deadline_s:
            note({**labels, "out of time before": leads[stretch:]})
            return
        try:
            if stretch:
                replayer.act(lead)
        except UnavailableError as why:
            note({**labels, "lead": lead, "skipped": str(why)})
            continue
        end_s = clock() + stretch_s
        while clock() < end_s:
            batch, begin_s = next(batches), clock()
            times, figures = replayer.batch()
            each_s = (clock() - begin_s) / len(times)
            for n, (step, probe, again) in enumerate(times):
                row = {**labels, "stretch": stretch, "lead": lead, "batch": batch}
                row |= {"at_s": f"{begin_s + n * each_s:.3f}"}
                row |= {"step_us": f"{step:.1f}", "probe_us": f"{probe:.1f}", "again_us": f"{again:.1f}"}
                write({**row, **(figures if n == 0 else {})})


class Figures:
    """Clocks, power, temperature and PCIe traffic of the GPU, by NVML; nothing where pynvml is missing."""

    def __init__(self, uuid: str) -> None:
        self._read_s = 0.0
        self._handle: Any = None
        try:
            import pynvml  # noqa: PLC0415 (may be missing)

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # noqa: BLE001 (whatever NVML says: replays are timed without it)
            print(json.dumps({"nvml": f"not read: {error}"}), flush=True)

    def read(self) -> dict[str, float]:
        """What can be read, at most once a second; NVML takes 20 ms to count each direction's traffic."""
        now = time.monotonic()
        if self._handle is None or now - self._read_s < CLOCKS_S:
            return {}
        self._read_s = now
        nvml, handle = self._nvml, self._handle
        calls: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "video_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_VIDEO),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_tx_mb": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) / 1024,
            "pcie_rx_mb": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES) / 1024,
        }
        read = {}
        for name, call in calls.items():
            with contextlib.suppress(nvml.NVMLError):
                read[name] = round(call(), 1)
        return read


class Gpu:
    """The one visible GPU: weights, both graphs, and the leads that can be tried inside a process.

    Args:
        neighbour: Index of another GPU, where there is one.
        one_stream: Run everything of this process on one stream; else weights are made on the default stream, each
            capture has a stream of its own, and replays run on another one.
    """

    def __init__(self, neighbour: str | None, *, one_stream: bool = False) -> None:
        import torch  # noqa: PLC0415 (only this process needs it)

        self._torch: Any = torch
        self._neighbour = neighbour
        self._one_stream = one_stream
        self._stream = torch.cuda.Stream()
        self._copies: Any = None
        if one_stream:
            torch.cuda.set_stream(self._stream)
        self._companions: list[subprocess.Popen[bytes]] = []
        torch.manual_seed(0)
        device = torch.device("cuda", 0)
        self._about = torch.cuda.get_device_properties(device)
        self._cudart = loaded_library("libcudart.so")
        self._figures = Figures(f"GPU-{self._about.uuid}")

        def tensor(*shape: int) -> Any:
            return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(std=0.01)

        shapes = {"qkv": (QKV, HIDDEN), "out": (HIDDEN, HIDDEN), "up": (2 * FORWARD, HIDDEN), "down": (HIDDEN, FORWARD)}
        self._layers = [{name: tensor(*shape).t() for name, shape in shapes.items()} for _ in range(LAYERS)]
        self._head = tensor(VOCABULARY, HIDDEN).t()
        widths = {"first": HIDDEN, "x": HIDDEN, "norm": HIDDEN, "qkv": QKV, "turned": QKV, "attended": HIDDEN}
        widths |= {"projected": HIDDEN, "up": 2 * FORWARD, "gated": FORWARD, "back": HIDDEN, "logits": VOCABULARY}
        self._rows = {name: tensor(BATCH, width) for name, width in widths.items()}
        self._counter = torch.zeros(1024, dtype=torch.int32, device=device)
        self._host = torch.zeros(BATCH, dtype=torch.bfloat16, pin_memory=True)
        self._kept: list[Any] = []
        self.capture()
        self._events = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(REPLAYS)]

    def _run_step(self) -> None:
        """Four gemms and nine small kernels a layer, then the head: what a decode step launches, in its order."""
        torch, rows = self._torch, self._rows
        torch.mul(rows["first"], 1.0, out=rows["x"])
        for layer in self._layers:
            torch.mul(rows["x"], 0.5, out=rows["norm"])
            torch.mm(rows["norm"], layer["qkv"], out=rows["qkv"])
            torch.mul(rows["qkv"], 0.9, out=rows["turned"])
            torch.add(rows["turned"], 0.01, out=rows["turned"])
            torch.add(rows["turned"][:, :HIDDEN], 0.01, out=rows["attended"])
            torch.mm(rows["attended"], layer["out"], out=rows["projected"])
            torch.add(rows["x"], rows["projected"], out=rows["x"])
            torch.mul(rows["x"], 0.5, out=rows["norm"])
            torch.mm(rows["norm"], layer["up"], out=rows["up"])
            torch.mul(rows["up"][:, :FORWARD], rows["up"][:, FORWARD:], out=rows["gated"])
            torch.add(rows["gated"], 0.01, out=rows["gated"])
            torch.mm(rows["gated"], layer["down"], out=rows["back"])
            torch.add(rows["x"], rows["back"], out=rows["x"])
        torch.mul(rows["x"], 0.5, out=rows["norm"])
        torch.mm(rows["norm"], self._head, out=rows["logits"])

    def _run_probe(self) -> None:
        for _ in range(PROBE_KERNELS):
            self._counter.add_(1)

    def capture(self, priority: int = 0) -> None:
        """Capture both graphs anew; kernels keep the priority of the stream that they were captured on."""
        torch = self._torch
        alone = self._one_stream and not priority
        stream = self._stream if alone else torch.cuda.Stream(priority=priority)
        with torch.cuda.stream(stream):
            self._run_step()
            self._run_probe()
        torch.cuda.synchronize()
        self._graphs = []
        for work in (self._run_step, self._run_probe):
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(graph, stream=stream):
                work()
            graph.instantiate()
            self._graphs.append(graph)
        if priority:
            self._stream = stream

    def kernels(self) -> int:
        """Nodes of the step's graph."""
        count = ctypes.c_size_t()
        graph = ctypes.c_void_p(self._graphs[0].raw_cuda_graph())
        self._call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
        return count.value

    def batch(self) -> tuple[list[tuple[float, float, float]], Mapping[str, float]]:
        """See :class:`Replayer`; the GPU's own figures are read while it computes."""
        torch = self._torch
        step, probe = self._graphs
        with torch.cuda.stream(self._stream):
            step.replay()  # not timed: the host queues the rest meanwhile
            for marks in self._events:
                marks[0].record()
                for mark, graph in zip(marks[1:], (step, probe, probe), strict=True):
                    graph.replay()
                    mark.record()
                if self._copies is not None:
                    self._copies.wait_event(marks[1])
                    with torch.cuda.stream(self._copies):
                        self._host.copy_(self._rows["logits"][:, 0], non_blocking=True)
        figures = self._figures.read()
        torch.cuda.synchronize()
        times = []
        for marks in self._events:
            step_us, probe_us, again_us = (1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(marks))
            times.append((step_us, probe_us, again_us))
        return times, figures

    def act(self, lead: str) -> None:
        """See :class:`Replayer`."""
        self.end_companions()
        torch = self._torch
        self._copies = None
        actions: dict[str, Callable[[], object]] = {
            "watch": lambda: None,
            "flush": self._flush,
            "streams": self._use_streams,
            "copies": self._copy_beside,
            "persisting": lambda: self._call("cudaCtxResetPersistingL2Cache"),
            "instantiate": lambda: [graph.instantiate() for graph in self._graphs],
            "capture": self._capture_elsewhere,
            "memory": self._move_memory,
            "idle": lambda: time.sleep(2.0),
            "context": lambda: self._accompany("context", os.environ.get("CUDA_VISIBLE_DEVICES", "0")),
            "neighbour": lambda: self._accompany("context", self._neighbour),
            "nvml": lambda: self._accompany("nvml", ""),
            "priority": lambda: self.capture(priority=-5),
            "blocking": lambda: self._call("cudaSetDeviceFlags", ctypes.c_uint(BLOCKING_SYNC)),
        }
        if lead not in actions:
            raise UnavailableError("not known inside a process")
        try:
            actions[lead]()
        except (RuntimeError, AttributeError, OSError) as error:
            raise UnavailableError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        torch.cuda.synchronize()

    def _use_streams(self) -> None:
        """Run a few kernels on eight more streams, which stay."""
        streams = [self._torch.cuda.Stream() for _ in range(8)]
        for stream in streams:
            with self._torch.cuda.stream(stream):
                self._counter.add_(1)
        self._kept += streams

    def _copy_beside(self) -> None:
        """From now to the next lead, copy a little of each step to the host on a second stream, as engines do."""
        self._copies = self._torch.cuda.Stream()

    def _flush(self) -> None:
        """Write twice what the second-level cache holds, ten times."""
        buffer = self._torch.empty(2 * self._about.L2_cache_size, dtype=self._torch.uint8, device="cuda")
        for n in range(10):
            buffer.fill_(n)

    def _capture_elsewhere(self) -> None:
        """Capture again behind other allocations, which stay: the command buffers cannot be where they were."""
        self._kept += [self._torch.empty(mib << 20, dtype=self._torch.uint8, device="cuda") for mib in (1, 3, 17, 130)]
        older = self._graphs  # freed after the new ones are there
        self.capture()
        del older

    def _move_memory(self) -> None:
        """Allocate and free memory of many sizes, and give the allocator's own back."""
        for mib in (1, 2, 5, 64, 512, 4096):
            pointer = ctypes.c_void_p()
            self._call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
            self._call("cudaFree", pointer)
        self._torch.cuda.empty_cache()

    def _call(self, function: str, *arguments: Any) -> None:
        if self._cudart is None:
            raise UnavailableError("libcudart is not loaded")
        status = getattr(self._cudart, function)(*arguments)
        if status:
            raise UnavailableError(f"{function} returned {status}")

    def _accompany(self, what: str, visible: str | None) -> None:
        """Start a second process beside this one."""
        if visible is None:
            raise UnavailableError("there is no neighbouring GPU")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible} if visible else dict(os.environ)
        self._companions.append(subprocess.Popen([sys.executable, str(COMPANIONS), what], env=environment))

    def end_companions(self) -> None:
        """End the processes of an earlier lead."""
        while self._companions:
            companion = self._companions.pop()
            companion.terminate()
            companion.wait()


def loaded_library(name: str) -> ctypes.CDLL | None:
    """A shared library that this process has already loaded, by how its file's name begins."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split(maxsplit=5)[-1]
        if Path(file).name.startswith(name):
            return ctypes.CDLL(file)
    return None


@contextlib.contextmanager
def readings(file: Path) -> Iterator[Callable[[dict[str, Any]], object]]:
    """A compressed CSV to write readings into."""
    with gzip.open(file, "wt", newline="") as text:
        table = csv.DictWriter(text, COLUMNS)
        table.writeheader()
        yield table.writerow


def main() -> None:
    """Follow the leads that ``gpu_states.py`` names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=json.loads, required=True)
    parser.add_argument("--leads", type=lambda names: names.split(","), required=True)
    parser.add_argument("--stretch", type=float, required=True)
    parser.add_argument("--deadline", type=float, required=True, help="on the monotonic clock")
    parser.add_argument("--neighbour", help="index of another GPU")
    parser.add_argument("--one-stream", action="store_true", help="run everything on one stream")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()

    def note(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)

    gpu = Gpu(options.neighbour, one_stream=options.one_stream)
    try:
        with contextlib.suppress(UnavailableError, AttributeError, RuntimeError):
            note({**options.labels, "nodes": gpu.kernels()})
        until = (options.stretch, options.deadline)
        with readings(options.into) as write:
            follow(gpu, options.leads, options.labels, until, write=write, note=note)
    finally:
        gpu.end_companions()


if __name__ == "__main__":
    main()
