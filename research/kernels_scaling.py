"""How long the kernel table of a large export takes, and how much memory, beside ``nsys stats -r nvtxkernsum``.

``python research/kernels_scaling.py [--nsys PATH] [--millions 0.5 1 5]``: makes exports of so many kernels in the
layout of nsys 2022.4 (from the fixture, whose ranges give way to ours), in three shapes: ``graphs`` as in the H200
capture (438 kernels a step, 419 from one graph launch), ``eager``, where each kernel has a launching call of its own,
and ``calls``, where two more calls come with each. Each reading is a process of its own, timed from its start to its
end: ``perfgate kernels FILE``, which shows steps, layers, roles and figures. The report of nsys sums kernels by range.

``--without-ranges`` leaves the ranges out, so that steps are inferred.
"""

from __future__ import annotations

import argparse
import gzip
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

_CALLS = {900: "cudaLaunchKernel", 901: "cudaGraphLaunch", 902: "cudaStreamIsCapturing", 903: "cudaEventQuery"}
SHAPES = ("graphs", "eager", "calls")

CHILD = """
import json, resource, sys
sys.argv = ["perfgate", "kernels", sys.argv[1]]
from perfgate.cli.main import main
try:
    main()
finally:
    print("MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


def rows(kernels: int, shape: str, *, ranges: bool) -> Iterator[tuple[str, tuple[int | str | None, ...]]]:
    """Rows of kernels, calls and ranges, step by step, so that no more than a few are in memory."""
    names = {name: 1000 + n for n, name in enumerate(dict.fromkeys(STEP))}
    yield from (("StringIds", (number, name)) for name, number in names.items())
    yield from (("StringIds", (one, text)) for one, text in _CALLS.items())
    correlation = 0
    for step in range(-(-kernels // len(STEP))):
        begin = step * STEP_NS
        if ranges:
            yield "NVTX_EVENTS", (begin, begin + STEP_NS - 1000, 60, f"perfgate.step.{step}", PID | 4242, 0)
        graph = 0
        for place, name in enumerate(STEP[: kernels - step * len(STEP)]):
            called, start = begin + 1000 + place * 8000, begin + 4_000_000 + place * 11_000
            in_graph = shape == "graphs" and place in GRAPH
            for number in (902, 903) if shape == "calls" else ():
                correlation += 1
                yield "CALL", (called - 900, called - 500, 0, PID | 4242, correlation, number, 0)
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


def make(file: Path, kernels: int, shape: str, *, ranges: bool = True) -> None:
    """Write an export of so many kernels."""
    file.write_bytes(gzip.decompress(FIXTURE.read_bytes()))
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("DELETE FROM NVTX_EVENTS")
    waiting: dict[str, list[tuple[int | str | None, ...]]] = {table: [] for table in INSERTS}
    for table, row in rows(kernels, shape, ranges=ranges):
        waiting[table].append(row)
        if len(waiting[table]) == 50_000:  # noqa: PLR2004 (a chunk)
            connection.executemany(INSERTS[table], waiting.pop(table))
            waiting[table] = []
    for table, left in waiting.items():
        connection.executemany(INSERTS[table], left)
    connection.commit()
    connection.close()


def read(file: Path) -> tuple[str, float, float]:
    """What the command prints first, its seconds and its peak memory in MiB."""
    begin = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", CHILD, str(file)], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    return ended.stdout.splitlines()[0], seconds, float(ended.stderr.split()[-1])


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
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=SHAPES)
    parser.add_argument("--without-ranges", action="store_true", help="leave out the ranges that name the steps")
    options = parser.parse_args()
    print("| kernels | shape | file, MB | seconds, best | us a kernel | peak MiB | nsys stats nvtxkernsum, s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes:
            for millions in options.millions:
                file, count = Path(folder) / "export.sqlite", round(millions * 1e6)
                make(file, count, shape, ranges=not options.without_ranges)
                runs = [read(file) for _ in range(options.repeat)]
                best = min(seconds for _, seconds, _ in runs)
                if f": {count} kernels, {-(-count // len(STEP))} " not in runs[0][0]:
                    raise SystemExit(f"read {runs[0][0]}, expected {count} kernels in steps of {len(STEP)}")
                theirs = "-"
                if options.nsys:
                    theirs = f"{min(nsys_stats(options.nsys, file) for _ in range(options.repeat)):.2f}"
                cells = (f"{count}", shape, f"{file.stat().st_size / 1e6:.0f}", f"{best:.2f}",
                         f"{best / count * 1e6:.2f}", f"{max(mib for *_, mib in runs):.0f}", theirs)  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)
                file.unlink()


if __name__ == "__main__":
    main()
