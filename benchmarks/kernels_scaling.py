"""How long the kernel table of a large export takes, and how much memory, beside ``nsys stats -r nvtxkernsum``.

``python benchmarks/kernels_scaling.py [--nsys PATH] [--millions 0.5 1 5]``: makes exports of so many kernels in the
layout of nsys 2022.4 (from the fixture, whose ranges give way to ours), in two shapes: ``graphs`` as in the H200
capture (438 kernels a step, 419 from one graph launch), and ``eager``, where each kernel has a launching call of its
own. Each reading is a process of its own, timed from its start to its end: steps, layers, roles and figures of every
step. The report of nsys sums kernels by range only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "nsys-2022.4-nvtx.sqlite.gz"
PID = 0x1000000000000 | 4242 << 24
LAYERS, STEP_NS = 32, 5_000_000
HEAD = ["_prepare_pos_seq_lens_kernel"] * 8 + ["direct_copy_kernel", "indexSelectSmallIndex"]
LAYER = [
    "vllm::fused_add_rms_norm_kernel", "nvjet_qkv", "vllm::rotary_embedding_kernel", "reshape_and_cache_flash_kernel",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<2>>(T1)", "void cutlass::device_kernel<flash::Combine<8>>(T1)",
    "nvjet_out", "cublasLt::splitKreduce_kernel", "vllm::fused_add_rms_norm_kernel", "nvjet_gate_up",
    "vllm::act_and_mul_kernel", "nvjet_down", "cublasLt::splitKreduce_kernel",
]  # fmt: skip
TAIL = ["vllm::fused_add_rms_norm_kernel", "nvjet_lm_head", *["_gumbel_sample_kernel"] * 10]
STEP = [*HEAD, *LAYER * LAYERS, *TAIL]
GRAPH = range(8, 8 + 419)
"""Which kernels of a step come from its graph."""

CHILD = """
import json, resource, sys
from pathlib import Path
from perfgate.trace.breakdown import figures
from perfgate.trace.nsys import read_nsys
trace = read_nsys(Path(sys.argv[1]))
found = figures(trace)
assert found.role_ns.sum() == trace.kernels.duration_ns.sum()
print(json.dumps({"kernels": len(trace.kernels), "steps": len(trace.steps),
                  "layers": int(trace.kernels.layer.max()) + 1,
                  "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def rows(kernels: int, *, eager: bool) -> Iterator[tuple[str, tuple[int | str | None, ...]]]:
    """Rows of kernels, calls and ranges, step by step, so that no more than a few are in memory."""
    names = {name: 1000 + n for n, name in enumerate(dict.fromkeys(STEP))}
    yield from (("StringIds", (number, name)) for name, number in names.items())
    yield from (("StringIds", (one, text)) for one, text in ((900, "cudaLaunchKernel"), (901, "cudaGraphLaunch")))
    correlation = 0
    for step in range(-(-kernels // len(STEP))):
        begin = step * STEP_NS
        yield "NVTX_EVENTS", (begin, begin + STEP_NS - 1000, 60, f"perfgate.step.{step}", PID | 4242, 0)
        graph = 0
        for place, name in enumerate(STEP[: kernels - step * len(STEP)]):
            called, start = begin + 1000 + place * 8000, begin + 4_000_000 + place * 11_000
            in_graph = not eager and place in GRAPH
            if not in_graph or place == GRAPH[0]:
                correlation += 1
                graph = correlation if in_graph else graph
                yield "CALL", (called, called + 5000, 0, PID | 4242, correlation, 901 if in_graph else 900, 0)
            number, node = (graph, (1 << 32) + place) if in_graph else (correlation, None)
            yield (
                "KERNEL",
                (start, start + 9000 + place % 7 * 100, 0, 1, 7, number, PID, *[names[name]] * 3, node, place),
            )


INSERTS = {
    "StringIds": "INSERT INTO StringIds VALUES (?, ?)",
    "NVTX_EVENTS": "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
    "VALUES (?, ?, ?, ?, ?, ?)",
    "CALL": "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, "
    "returnValue) VALUES (?, ?, ?, ?, ?, ?, ?)",
    "KERNEL": "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, "
    "globalPid, demangledName, shortName, mangledName, graphNodeId, gridX, gridY, gridZ, blockX, blockY, blockZ, "
    "registersPerThread, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1 + ? % 9, 1, 1, 128, 1, 1, 32, 0, 0, 0, 0, 1)",
}


def make(file: Path, kernels: int, *, eager: bool) -> None:
    """Write an export of so many kernels."""
    file.write_bytes(gzip.decompress(FIXTURE.read_bytes()))
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("DELETE FROM NVTX_EVENTS")
    waiting: dict[str, list[tuple[int | str | None, ...]]] = {table: [] for table in INSERTS}
    for table, row in rows(kernels, eager=eager):
        waiting[table].append(row)
        if len(waiting[table]) == 50_000:  # noqa: PLR2004 (a chunk)
            connection.executemany(INSERTS[table], waiting.pop(table))
            waiting[table] = []
    for table, left in waiting.items():
        connection.executemany(INSERTS[table], left)
    connection.commit()
    connection.close()


def read(file: Path) -> dict[str, float]:
    """Seconds, rows and peak memory of one reading."""
    begin = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", CHILD, str(file)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found | {"seconds": time.perf_counter() - begin}


def nsys_stats(nsys: str, file: Path) -> float:
    """Seconds that nsys takes to sum kernels by range; its status proves nothing, its rows do."""
    begin = time.perf_counter()
    words = [nsys, "stats", "-q", "-r", "nvtxkernsum", "--format", "csv", "-o", "-", str(file)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, cwd=file.parent)
    seconds = time.perf_counter() - begin
    if "perfgate.step.0" not in ended.stdout:
        raise SystemExit(f"nsys stats printed no rows: {ended.stdout[-500:]} {ended.stderr[-500:]}")
    return seconds


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nsys", help="nsys 2022.4, for comparison")
    parser.add_argument("--millions", type=float, nargs="+", default=[0.5, 1, 5])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print("| kernels | shape | file, MB | seconds, best | us a kernel | peak MiB | nsys stats nvtxkernsum, s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for eager in (False, True):
            for millions in options.millions:
                file, count = Path(folder) / "export.sqlite", round(millions * 1e6)
                make(file, count, eager=eager)
                runs = [read(file) for _ in range(options.repeat)]
                best = min(run["seconds"] for run in runs)
                if {run["kernels"] for run in runs} != {count} or runs[0]["layers"] != LAYERS:
                    raise SystemExit(f"read {runs[0]}, expected {count} kernels and {LAYERS} layers")
                theirs = "-"
                if options.nsys:
                    theirs = f"{min(nsys_stats(options.nsys, file) for _ in range(options.repeat)):.2f}"
                cells = (f"{count}", "eager" if eager else "graphs", f"{file.stat().st_size / 1e6:.0f}", f"{best:.2f}",
                         f"{best / count * 1e6:.2f}", f"{max(run['MiB'] for run in runs):.0f}", theirs)  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)
                file.unlink()


if __name__ == "__main__":
    main()
