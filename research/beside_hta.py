"""perfgate's figures of traces beside those of Holistic Trace Analysis (HTA), on the traces of HTA's own tests.

``python research/beside_hta.py --hta VENV/bin/python --traces FOLDER``: VENV is an environment of its own with
``HolisticTraceAnalysis==0.5.0`` and ``pandas<2.3``, with which its critical path works; FOLDER is ``tests/data`` of
https://github.com/facebookresearch/HolisticTraceAnalysis at f4d0062c382f42bd8a74838bcdad1916c7d5d2da.

HTA cuts the last ``ProfilerStep#`` off and rounds times to microseconds. So both read copies whose steps have another
name, of which nothing is cut, and HTA is told not to round. It prints tables; docs/kernels.md has what came out.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.breakdown import figures
from perfgate.trace.critical_path import LAUNCH, critical_paths
from perfgate.trace.kernel_spread import kernel_spreads
from perfgate.trace.kernel_table import Trace
from perfgate.trace.launch_queue import find_launches
from perfgate.trace.memory_timeline import read_memory
from perfgate.trace.selection import as_one_step, select
from perfgate.trace.trace_file import as_plain_file, read_trace

TRACES = {
    "alexnet": "critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "simple_add": "critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz",
    "event_sync": "critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "sampled rank 0": "timeline_analysis/sampled_rank-0.json.gz",
    "sampled rank 1": "trace_filter/sampled_rank-1.json.gz",
    "nccl_data": "nccl_parser_config/nccl_data.json.gz",
    "ns_resolution": "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "trace_diff control": "trace_diff/control/control.json.gz",
    "trace_diff test": "trace_diff/test/test.json.gz",
    "negative_queue": "negative_queue_length_values_check/rank0.json.gz",
}
MEMORY = "memory_analysis/memory_timeline.raw.gz"
STEP = "perfgate.step."
TIMES = ("kernel_time(us)", "idle_time(us)", "compute_time(us)")
OF_PATH = {
    "device": ("gpu_compute_bound", "gpu_communication_bound"),
    "gap": ("gpu_kernel_kernel_overhead",),
    "launch": ("gpu_kernel_launch_overhead",),
    "host": ("cpu_bound", "data_loading"),
}
"""perfgate's parts of a path, and what HTA calls them."""
_RANGES = ("user_annotation", "gpu_user_annotation")

CHILD = """
import contextlib, io, json, logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.memory_analysis import MemoryAnalysis
from hta.trace_analysis import TraceAnalysis

kind, file = sys.argv[1:]
if kind == "memory":
    sizes = MemoryAnalysis(file)._process_raw_events()[1]
    print(json.dumps({"peaks": [max(row[n] for row in sizes) for n in range(8)], "last": sizes[-1]}))
    sys.exit()
with contextlib.redirect_stdout(io.StringIO()):
    one = TraceAnalysis({0: file}, os.path.dirname(file), include_last_profiler_step=True)
    spread = one.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0, num_kernels=10**6,
                                            include_memory_kernels=False)[1]
    delay = one.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]["launch_delay"]
    queue = one.get_queue_length_summary(ranks=[0])[("queue_length", "max")]
    path = one.critical_path_analysis(0, "perfgate.step.", 0)[0].get_critical_path_breakdown()
    found = {
        "time": one.get_temporal_breakdown(visualize=False).to_dict("records")[0],
        "overlap": float(one.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]),
        "spread": spread[["name", "sum (us)", "min (us)", "max (us)", "mean (us)", "stddev"]].values.tolist(),
        "launches": [len(delay), float(delay.median()), float(delay.mean()), float(delay.max())],
        "queue": {str(int(stream)): int(most) for (_, stream), most in queue.items()},
        "path": {str(name): float(us) for name, us in path.groupby("bound_by")["duration"].sum().items()},
    }
print(json.dumps(found))
"""


def of_hta(python: Path, kind: str, file: Path) -> dict[str, Any]:
    """HTA's figures, from a process of its own."""
    command = [str(python), "-c", CHILD, kind, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def prepared(source: Path, target: Path) -> Path:
    """A copy, unpacked, whose steps are called perfgate.step.N.

    Steps are the ranges ProfilerStep#N; without them the last one that measures a forward pass.
    """
    content = json.loads(gzip.decompress(source.read_bytes()))
    ranges = [event for event in content["traceEvents"] if event.get("ph") == "X" and event.get("cat") in _RANGES]
    steps = [event for event in ranges if event["name"].startswith("ProfilerStep#") and event["cat"] == _RANGES[0]]
    steps = steps or [event for event in ranges if event["name"].endswith("measure|forward]")][-1:]
    for event in ranges:
        event["name"] = event["name"].replace("ProfilerStep#", "renamed")
    for number, event in enumerate(sorted(steps, key=lambda event: float(event["ts"]))):
        event["name"] = f"{STEP}{number}"
    target.write_text(json.dumps(content))
    return target


def of_perfgate(file: Path) -> dict[str, Any]:
    """The same figures by perfgate, in HTA's units: microseconds and percent."""
    trace = read_trace(file)
    whole, names = figures(as_one_step(trace)), trace.names
    talks = np.array([role == COMMUNICATION for role in names.role])[trace.kernels.name]
    computing = trace.kernels.take(~talks)
    computed_ns = union_ns(computing.start_ns, computing.start_ns + computing.duration_ns)
    times = (int(whole.span_ns.sum()), int(whole.idle_ns.sum()), computed_ns)
    communicated_ns, launches = int(whole.communication_ns.sum()), find_launches(trace)
    delay = np.maximum(launches.delay_ns - launches.call_ns, 0) / 1e3  # HTA counts from the end of the call
    streams = np.unique(launches.stream).tolist()
    return {
        "time": dict(zip(TIMES, (ns / 1e3 for ns in times), strict=True)),
        "overlap": 100 * int(whole.hidden_ns.sum()) / communicated_ns if communicated_ns else float("nan"),
        "spread": spreads(trace),
        "launches": [len(delay), float(np.median(delay)), float(delay.mean()), float(delay.max())],
        "queue": {str(stream): int(launches.queue[launches.stream == stream].max()) for stream in streams},
        "path": path(trace),
    }


def spreads(trace: Trace) -> dict[str, tuple[float, ...]]:
    """Sum, least, most, mean and standard deviation of each kernel, whatever its place: HTA knows no places."""
    selection = select(as_one_step(trace))
    kernels = dataclasses.replace(trace.kernels, place=np.zeros_like(trace.kernels.place))
    merged = dataclasses.replace(selection, trace=dataclasses.replace(trace, kernels=kernels))
    return {
        trace.names.demangled[one.name]: (one.time_ns, one.least_ns, one.most_ns, one.mean_ns, one.sd_ns or 0.0)
        for one in kernel_spreads(merged)
    }


def path(trace: Trace) -> dict[str, float]:
    """Microseconds of the first step's path, by what HTA tells apart."""
    sums = Counter[str]()
    for piece in critical_paths(select(trace, 0))[0].pieces:
        sums["launch" if piece.part == LAUNCH else piece.part.where] += piece.time_ns
    return {name: sums[name] / 1e3 for name in OF_PATH}


def union_ns(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """How long at least one of these runs; they are in order of start."""
    end = np.maximum.accumulate(end)
    return int(end[-1] - start[0] - np.maximum(start[1:] - end[:-1], 0).sum()) if len(start) else 0


def agreeing(ours: dict[str, tuple[float, ...]], theirs: list[list[Any]]) -> str:
    """How many of HTA's kernels have the same sum, least, most, mean and standard deviation, within 2 ns."""
    equal = [
        name in ours and np.allclose(np.array(ours[name]) / 1e3, row, rtol=1e-6, atol=2e-3) for name, *row in theirs
    ]
    return f"{sum(equal)} of {len(equal)}"


def table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print one, in Markdown."""
    columns = list(heading)
    for row in (columns, ["---", *["---:"] * (len(columns) - 1)], *rows):
        print("| " + " | ".join(f"{one:.1f}" if isinstance(one, float) else str(one) for one in row) + " |")
    print()


def beside(ours: Iterable[float], theirs: Iterable[float]) -> list[str]:
    """Figures of both; one where they agree to a tenth."""
    pairs = [(f"{a:.1f}", f"{b:.1f}") for a, b in zip(ours, theirs, strict=True)]
    return [a if a == b else f"{a} / {b}" for a, b in pairs]


def main() -> None:
    """Read every trace with both and print the figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta", type=Path, required=True, help="the interpreter of an environment with HTA")
    parser.add_argument("--traces", type=Path, required=True, help="tests/data of HTA's repository")
    chosen = parser.parse_args()
    times, launches, paths = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for label, name in TRACES.items():
            file = prepared(chosen.traces / name, Path(folder) / "trace.json")
            mine, other = of_perfgate(file), of_hta(chosen.hta, "trace", file)
            print(label, file=sys.stderr, flush=True)
            both = [[side["time"][key] for key in TIMES] + [side["overlap"]] for side in (mine, other)]
            times.append([label, *beside(*both)])
            queues = "equal" if mine["queue"] == other["queue"] else f"{mine['queue']} / {other['queue']}"
            delays = beside(mine["launches"], other["launches"])
            launches.append([label, agreeing(mine["spread"], other["spread"]), *delays, queues])
            parts = [sum(other["path"].get(one, 0.0) for one in OF_PATH[part]) for part in OF_PATH]
            paths.append([label, *beside(mine["path"].values(), parts)])
    with as_plain_file(chosen.traces / MEMORY) as plain:
        held = read_memory(plain).holdings
    memory = of_hta(chosen.hta, "memory", chosen.traces / MEMORY)
    print("One figure where both agree to a tenth, else perfgate / HTA; times in us.\n")
    table(["whole trace", "span", "idle", "computing", "overlap %"], times)
    table(
        ["launches", "kernels with equal spread", "launches", "median delay", "mean", "most", "longest queues"],
        launches,
    )
    table(["path of a step", *OF_PATH], paths)
    peaks = [max(holding.peak(int(holding.time_ns[0]) - 1, 1 << 62), 0) for holding in held.values()]
    last = [int(holding.level_bytes[-1]) for holding in held.values()]
    for what, ours, theirs in (("Peaks", peaks, memory["peaks"]), ("Levels at the end", last, memory["last"])):
        print(f"{what} of memory: {'equal' if ours == theirs else f'{ours} / {theirs}'}")


if __name__ == "__main__":
    main()
