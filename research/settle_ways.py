"""What makes a slow GPU fast soonest, once an engine is up: its own work, or graphs replayed without it.

``python research/settle_ways.py SCENARIO --processes 6 --minutes 7 [--into FILE]`` on a host with vLLM and one GPU.

Each process starts the engine of a scenario, warms it up as a trial does, and goes one way until the probe reads fast
or :data:`MOST_S` are over. Then it writes much on another stream, which makes a GPU slow (docs/states.md), and goes the
next way, and so on. After each way the engine runs once more: a way is of use only if the engine stays fast. Processes
begin at different ways. Prints a line of JSON a way that was gone, and last the mean time of each.

======== ====================================================================================================
way      what is done again and again
======== ====================================================================================================
engine   an iteration of the workload, as :mod:`perfgate.capture.settling` does
probe    the probe's graph of 200 tiny kernels
weights  a graph of one small product with each of the model's matrices, which reads what a decode step reads
======== ====================================================================================================
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfgate.scenario.declaration import load
from perfgate.scenario.workload import Workload

WAYS = ("engine", "probe", "weights")
MOST_S = 15.0
SLICE_S = 0.15
"""Between two readings of the probe."""
SLOW_NS = 196_000
"""Of the probe on an H200, between its 179 and 215 us. On an H100 the fast state takes up to 199: set it anew there."""
STAY_S = 1.0
"""The engine's own work after a way."""


def replay_probe(worker: Any) -> Callable[[], None]:
    """Replays of the probe's graph, some of them at a time."""
    probe = vars(worker)["perfgate_probe"].__self__

    def some() -> None:
        for _ in range(50):
            probe.graph.replay()

    return some


def replay_weights(worker: Any) -> Callable[[], None]:
    """Replays of a graph that multiplies one small batch with each matrix of the model."""
    import torch

    kept = vars(worker)
    if "perfgate_weights" not in kept:
        matrices = [p for p in worker.model_runner.get_model().parameters() if p.dim() == 2]  # noqa: PLR2004
        rows = {p.shape[1]: torch.zeros(8, p.shape[1], dtype=p.dtype, device=p.device) for p in matrices}
        out = {p.shape[0]: torch.zeros(8, p.shape[0], dtype=p.dtype, device=p.device) for p in matrices}
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for matrix in matrices:
                torch.mm(rows[matrix.shape[1]], matrix.t(), out=out[matrix.shape[0]])
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for matrix in matrices:
                    torch.mm(rows[matrix.shape[1]], matrix.t(), out=out[matrix.shape[0]])
            finally:
                graph.capture_end()
        kept["perfgate_weights"] = graph, rows, out
    graph = kept["perfgate_weights"][0]

    def some() -> None:
        for _ in range(8):
            graph.replay()

    return some


REPLAYS = {"probe": replay_probe, "weights": replay_weights}


def go(worker: Any, way: str, slow_ns: int, most_s: float, slice_s: float) -> dict[str, Any]:
    """In a rank: replay until the probe reads fast; how long that took."""
    import torch

    read = vars(worker)["perfgate_probe"]
    some = REPLAYS[way](worker)
    begin = time.monotonic()
    readings = [int(read())]
    while readings[-1] > slow_ns and time.monotonic() - begin < most_s:
        until = time.monotonic() + slice_s
        while time.monotonic() < until:
            some()
            torch.cuda.synchronize()
        readings.append(int(read()))
    return {"took_s": round(time.monotonic() - begin, 3), "readings": [readings[0], readings[-1]]}


def disturb(worker: Any) -> int:
    """In a rank: write four times what the second-level cache holds on another stream; the reading after it."""
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        much = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        for value in range(4):
            much.fill_(value)
    torch.cuda.synchronize()
    return int(vars(worker)["perfgate_probe"]())


class Session:
    """An engine and what was measured with it.

    Args:
        scenario: Its engine and workload.
        said: Written after each way.
    """

    def __init__(self, scenario: Path, said: Callable[[dict[str, Any]], None]) -> None:
        self.worker = importlib.import_module("perfgate.capture.vllm_worker")
        loaded = load(scenario)
        self.engine_args = dict(loaded.scenario.engine.args)
        shape = loaded.scenario.workload
        if not isinstance(shape, Workload):
            raise SystemExit(f"{scenario}: expected a workload of batches, of no server")
        self.shape = shape
        self.model = str((scenario.parent / str(loaded.scenario.engine.model.config)).resolve())
        self.loop = self.worker.WorkerLoop()
        self.said = said
        self.number = 0

    def start(self) -> dict[str, Any]:
        """Build the engine."""
        request = {"model": self.model, "dummy": True, "engine_args": self.engine_args}
        answer: dict[str, Any] = self.loop.start(request)
        self.vocabulary = answer["vocabulary"]
        return {"engine_s": round(answer["engine_ns"] / 1e9, 1)}

    def iterate(self) -> tuple[float, int]:
        """An iteration: its median step in milliseconds, and the reading after it."""
        self.number += 1
        shape = self.shape
        prompts = [[(7 * n + 13 * self.number + r) % self.vocabulary for n in range(shape.input_tokens)]
                   for r in range(shape.batch)]  # fmt: skip
        answer = self.loop.iterate({"prompts": prompts, "output_tokens": shape.output_tokens, "probe": True})
        times = [t for t, _ in answer["deliveries"]]
        steps = [b - a for a, b in itertools.pairwise(times)]
        probes = answer["probe_ns"]
        return statistics.median(steps) / 1e6, probes[1][0] if probes else 0

    def way(self, name: str) -> dict[str, Any]:
        """Go a way to its end, and then run the engine for a while."""
        if name == "engine":
            begin, readings = time.monotonic(), [self._probe()]
            while readings[-1] > SLOW_NS and time.monotonic() - begin < MOST_S:
                readings.append(self.iterate()[1])
            found = {"took_s": round(time.monotonic() - begin, 3), "readings": [readings[0], readings[-1]]}
        else:
            (found,) = self.worker.call_ranks(self.loop.engine, go, name, SLOW_NS, MOST_S, SLICE_S)
        begin, after = time.monotonic(), []
        while time.monotonic() - begin < STAY_S:
            after.append(self.iterate())
        return {"way": name, **found, "step_ms": [round(step, 3) for step, _ in after], "after": [p for _, p in after]}

    def _probe(self) -> int:
        (reading,) = self.loop.read_probe(self.loop.engine)
        return int(reading)

    def run(self, process: int, until: float) -> None:
        """Warm up, go a way, disturb, go the next one, until the time is up."""
        self.said({"process": process, **self.start()})
        for _ in range(2):
            step, probe = self.iterate()
        self.said({"process": process, "warmed_up": [round(step, 3), probe]})
        for number in range(len(WAYS)):
            if time.monotonic() > until:
                break
            row = self.way(WAYS[(process + number) % len(WAYS)])
            (slow,) = self.worker.call_ranks(self.loop.engine, disturb)
            self.said({"process": process, "number": number, **row, "disturbed_to": slow})
        self.loop.stop({})


def main(words: Sequence[str] | None = None) -> None:
    """Run processes one after another, then say what each way took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--into", type=Path, default=Path("settle-ways.jsonl"))
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(words)

    def said(row: dict[str, Any]) -> None:
        line = json.dumps(row)
        print(line, flush=True)
        with given.into.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    if given.process is not None:
        Session(given.scenario, said).run(given.process, given.until)
        return
    until = time.monotonic() + 60 * given.minutes
    for process in range(given.processes):
        if time.monotonic() > until:
            break
        ours = ["--process", str(process), "--until", str(until), "--into", str(given.into)]
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        subprocess.run([sys.executable, __file__, str(given.scenario), *ours], env=environment, check=False)
    rows = [json.loads(line) for line in given.into.read_text(encoding="utf-8").splitlines()]
    gone = [row for row in rows if "way" in row and row["readings"][0] > SLOW_NS]
    for way in WAYS:
        for first in (True, False):
            own = [row["took_s"] for row in gone if row["way"] == way and (row["number"] == 0) == first]
            if own:
                where = "after a start" if first else "after a disturbance"
                print(f"{way} {where}: {len(own)} times, mean {statistics.mean(own):.2f} s, {sorted(own)}")


if __name__ == "__main__":
    main()
