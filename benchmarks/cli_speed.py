"""How long a user waits for ``perfgate --help``, for a list of 50 runs, and for comparisons of a CSV and of records.

``python benchmarks/cli_speed.py``: fake trials make the runs; the commands are run as processes, ten times each. The
records have 12 pairs and 8 gates.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fake_collector import FakeCollector

from perfgate import __version__, gate
from perfgate.capture.session import Session
from perfgate.record.run_record import Run, record_file
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import make_plan
from perfgate.scenario.subject import Subject

RUNS = 10
LISTED = 50
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
TABLE = (str(FIXTURES / "h200-llama-8b-extra-kernel.csv"), "--gate", "itl_median:0.1%:0.5%", "--order", "randomised")
PAIRS = 12
GATED = ("itl_median", "itl_p95", "itl_p99", "tpot_mean", "ttft_median", "ttft_p95", "e2e_median", "output_throughput")
SCENARIOS = Path(__file__).parents[1] / "scenarios"


def make_record(folder: Path, seed: int) -> Path:
    """A record of the llama-8b-decode workload with twelve pairs and eight gates."""
    text = (SCENARIOS / "llama-8b-decode.yaml").read_text()
    gates = "\n".join(f"  - {{metric: {name}, ignorable: 1%, must_catch: 5%}}" for name in GATED)
    scenario = folder / "speed.yaml"
    (folder / "perfgate.toml").touch()
    scenario.write_text(text[: text.index("gates:")] + f"gates:\n{gates}\n")
    shutil.copytree(SCENARIOS / "models", folder / "models")
    plan = make_plan((load(scenario),), seed)
    subject = Subject(python=sys.executable)
    run = Run(name=f"speed-{seed}", plan=plan, subjects={"base": subject, "head": subject}, perfgate=__version__)
    (folder / "trials").mkdir()
    with Session(folder, run, FakeCollector(seed=seed), lambda _: None) as session:
        session.measure(plan.cells[0], PAIRS)
    return record_file(folder, plan.cells[0])


def seconds(*words: str, expected: int) -> list[float]:
    """Wall time of each of ten runs of a command."""
    found = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        ended = subprocess.run([Path(sys.executable).with_name("perfgate"), *words], capture_output=True, check=False)
        found.append(time.perf_counter() - begin)
        if ended.returncode != expected:
            raise SystemExit(ended.stderr.decode())
    return found


def main() -> None:
    """Print median and worst time of each command."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in "ab"]
        for folder in folders:
            folder.mkdir()
        records = [f"{make_record(folder, seed)}:head" for seed, folder in enumerate(folders)]
        size = Path(records[0].removesuffix(":head")).stat().st_size
        runs = Path(scratch) / "runs"
        sides = {side: Subject(python=sys.executable) for side in ("base", "head")}
        run = gate.run([folders[0] / "speed.yaml"], sides, runs=runs, seed=0, collector=FakeCollector()).folder
        for number in range(1, LISTED):
            shutil.copytree(run, runs / f"speed-20260101T{number:06}Z-abcdef")
        for label, limit, found in (
            ("perfgate --help", 0.15, seconds("--help", expected=0)),
            (f"perfgate list of {LISTED} runs", 0.4, seconds("list", "--runs", str(runs), expected=0)),
            ("perfgate compare of a CSV", 0.9, seconds("compare", *TABLE, expected=10)),
            ("perfgate compare of records", 1.5, seconds("compare", *records, expected=20)),
        ):
            print(f"{label}: median {statistics.median(found):.3f} s, worst {max(found):.3f} s (limit {limit} s)")
        print(f"records of {size / 1e6:.2f} MB each, {PAIRS} pairs, {len(GATED)} gates")


if __name__ == "__main__":
    main()
