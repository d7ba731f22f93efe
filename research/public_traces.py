"""What public traces give: steps, how they were found, and how much device time has no role.

``python research/public_traces.py FOLDER``: downloads the files below from GitHub into FOLDER, each at a pinned
commit and held against its digest, and prints a table. A file that is there already is taken as it
is, if its digest is right. They are other projects' test data and are not part of this repository. Where ranges name
four steps or more, the trace is read a second time without them: what is inferred is held against what the ranges say.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

from perfgate.errors import RecordError
from perfgate.scenario.kernel_names import UNLISTED
from perfgate.trace.engine_ranges import is_step
from perfgate.trace.kernel_table import STEP_KINDS, Trace
from perfgate.trace.trace_file import read_trace

SOURCES = """
facebookresearch/HolisticTraceAnalysis f4d0062c382f42bd8a74838bcdad1916c7d5d2da
c1cf9c575fdcd7bdc6326ceab834f94b351f81ae55577a7471aa9e328fb8b58e  tests/data/nccl_parser_config/nccl_data.json.gz
e279d7280e73719e8dd9550e120cfe081fbe268596bd297fe5fcbf63e2b75a09  tests/data/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz
769af9ab5262468eb7baf6a7bfdb138ef15542264c72c0c313758d951b16dc15  tests/data/df_index_resolver/df_index_resolver.json.gz
43ed872e4c5dc2e8da5946d761ed61923a75c6c799cc62be9e1c859d440a56fd  tests/data/trace_diff/control/control.json.gz
5e69e04ed19b2dbf59e632008146c1bd6da417dc3af7ab4885c619b11e34f1bf  tests/data/trace_diff/test/test.json.gz
b8ce7a1a143b55dd1811d269272b09d1c693ffea85b91858f5fb246e7ad8c5f8  tests/data/negative_queue_length_values_check/rank0.json.gz
71b98c30a2751cc56d9bf78f8fb76467acd56e0be6a1f0da23c600941d29aafd  tests/data/timeline_analysis/sampled_rank-0.json.gz
b9febb1abc8cc729a2890fb6a4171de9867ba72c944437ee046067e7c89912dc  tests/data/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz
39fdab670f9e80a05ccc6d0d07611b3aeba1092fa10681d8dd08cea48d0488b5  tests/data/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz
07e7e02da9cfda66f5b6fc5fd17e1f93185321504496f4c00e8d375fb162bf84  tests/data/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz
pytorch/kineto 041e7ce99f1562dd81232ee58b7c454ef16bfae2
a91798b500ce9d6e21c416ce32dcd8ecf4788489df86f59ba2f944906c90b853  tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz
c290eb249e74824736f81886587614fc5d96660d3e60d0c256dee4b4a0e268f6  tb_plugin/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz
pytorch/kineto 0a1e4063d196d973f67ca2312c1d700c9d0c8375
f45f18f171e996603e705239f8d3f4f9424710671a956c4357fa1161b6475f09  tb_plugin/samples/resnet50_autograd_api_num_workers_0/worker0.pt.trace.json.gz
AMD-AGI/TraceLens 171dd74721ca1ec45709e5805b68ae1f65e27811
da0a9ffe51da7b5cc0ece37be5708c4c002a2f89e2839bd2bad00ab8d7e6f8c5  tests/traces/inference/vllm_decode_full/graph_execution.json.gz
4eff6c90583855d67a12a06aa5edfd281a745bba4be4462a41bd4cacf6dea702  tests/traces/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz
6bafad1e64aa49e71793cb45fb3ab84fa93f9f018c51b18a86508e7ea6de350e  tests/traces/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz
ca3c1a8452be14f8e41aaaf3c80d2c0502ce97d365e2c74bc21a95fb9585fde8  tests/traces/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz
0a6a7dfe1f0bf16c74876ebabffbac57b350d8897c4ad42c3dcf6d1dab2aa2aa  tests/traces/mi300/resnet_act_checkpoint.json.gz
7f5e9c9dc4ba71371fde1d947204134575b05d7a614986f249fa8142663c7ca2  tests/traces/b200/eager_trace.json.gz
0c9c627bcefe7365e6595ff9f86594e07553820db6a268c09c369e25fe47b97a  tests/traces/mi210/gpu_only_trace/gpu_only_trace.json.gz
"""  # noqa: E501 (as sha256sum prints them)
"""Repositories and commits, each followed by digests (SHA-256) and paths of its files."""

LEAST_STEPS = 4
"""Of fewer nothing is inferred."""


def fetched(folder: Path, repository: str, commit: str, path: str, digest: str) -> Path:
    """The file, downloaded where it is not there yet."""
    file = folder / f"{digest[:12]}-{path.rpartition('/')[2]}"
    if not file.exists():
        url = f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            file.write_bytes(answer.read())
    if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{file} is not what was pinned: remove it and try again")
    return file


def without_ranges(file: Path, folder: Path) -> Path:
    """A copy in which nothing names a step."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    events = content["traceEvents"] if isinstance(content, dict) else content
    copy = folder / file.name.removesuffix(".gz")
    copy.write_text(json.dumps({"traceEvents": [one for one in events if not is_step(str(one.get("name")))]}))
    return copy


def found(trace: Trace) -> str:
    """How many steps, and how they were found, or why there are none."""
    kinds = np.bincount(trace.steps.kind, minlength=len(STEP_KINDS)).tolist()
    steps = ", ".join(f"{count} {kind}" for kind, count in zip(STEP_KINDS, kinds, strict=True) if count)
    if not len(trace.steps):
        return next(note.text for note in trace.cautions if note.code == "steps-unclear")
    if not trace.steps.inferred.any():
        return f"{steps}, named"
    unclear = any(note.code == "steps-unclear" for note in trace.cautions)
    return f"{steps}, inferred{', unclear' if unclear else ''}"


def unlisted(trace: Trace) -> str:
    """The share of kernel time without a role."""
    role = np.array([role == UNLISTED for role in trace.names.role])[trace.kernels.name]
    total = trace.kernels.duration_ns.sum()
    return f"{trace.kernels.duration_ns[role].sum() / total:.1%}" if total else "-"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    print("| trace file | kernels | steps | without its ranges | unlisted |\n|---|---|---|---|---|")
    repository = commit = ""
    for line in SOURCES.split("\n"):
        first, _, second = line.partition(" ")
        if "/" in first:
            repository, commit = first, second
            print(f"| **{repository}** at `{commit[:10]}` | | | | |")
        elif first:
            digest, path = first, second.strip()
            file = fetched(folder, repository, commit, path, digest)
            shown = "/".join(path.split("/")[-2:])
            try:
                trace = read_trace(file)
            except RecordError as error:
                print(f"| `{shown}` | - | refused: {str(error).splitlines()[0].rpartition(': ')[2]} | | |", flush=True)
                continue
            again = ""
            if len(trace.steps) >= LEAST_STEPS and not trace.steps.inferred.any():
                with tempfile.TemporaryDirectory() as scratch:
                    again = found(read_trace(without_ranges(file, Path(scratch))))
            print(f"| `{shown}` | {len(trace.kernels)} | {found(trace)} | {again} | {unlisted(trace)} |", flush=True)


if __name__ == "__main__":
    main()
