"""How long ``perfgate history`` takes over 10,000 runs, and how large its pages are: ``history_speed.py [RUNS]``.

Run folders with a manifest, a verdict and a record of six pairs each are made, with three metrics that have a gate. The
command is run as a process: once with an empty cache, then with a full one.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hand_made import MACHINE, cell, gate, record, run, trials

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import verdict_json
from perfgate.record.run_record import Visit, record_file, write_record, write_run

RUNS = 10_000
MOST_S, MOST_BYTES = 10.0, 2 << 20
BEGUN = datetime(2025, 9, 1, tzinfo=UTC)
METRICS = ("itl_median", "ttft_median", "output_throughput")


def make_run(folder: Path, number: int) -> None:
    """One run folder, an hour after the one before."""
    rng = random.Random(number)  # noqa: S311 (figures)
    measured = cell("speed", [gate(metric) for metric in METRICS])
    visit = Visit(machine=MACHINE, t0_utc=(BEGUN + timedelta(hours=number)).isoformat())
    kept = record(measured, trials([rng.gauss(0, 0.001) for _ in range(6)]), visits=(visit,))
    manifest = run([measured])
    (folder / "records").mkdir(parents=True)
    write_run(folder, manifest)
    write_record(record_file(folder, measured), kept)
    (folder / "verdict.json").write_text(verdict_json(judge(manifest, {measured.cell_id: kept})))


def main(runs: int) -> int:
    """Print seconds and sizes; 1 where the second call or a page is beyond its limit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, site = Path(scratch) / "runs", Path(scratch) / "site"
        for number in range(runs):
            make_run(folder / f"run-{number}", number)
        command = [sys.executable, "-m", "perfgate", "history", str(folder), "--output", str(site),
                   "--cache", f"{scratch}/cache"]  # fmt: skip
        taken = []
        for _ in range(2):
            begun = time.perf_counter()
            subprocess.run(command, check=True)
            taken.append(time.perf_counter() - begun)
        largest = max(file.stat().st_size for file in site.iterdir())
    print(f"{runs} runs: {taken[0]:.1f} s with an empty cache, {taken[1]:.1f} s with a full one")
    print(f"the largest page: {largest / 1e6:.2f} MB")
    return int(taken[1] > MOST_S or largest > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
