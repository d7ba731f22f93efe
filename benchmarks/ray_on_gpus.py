"""Wall time of cells on the GPUs of a host as one Ray node, a cell on each at once, beside that of one GPU alone.

``python benchmarks/ray_on_gpus.py SCENARIO... --base python=PYTHON --gpus 0,1 --minutes 12``

Base against base, so both end with 0. Starts a Ray node of its own and ends it. Prints a line for each way, and ends
with the worse status of both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def main() -> None:
    """Measure both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path, nargs="+", help="as many cells as GPUs, or more")
    parser.add_argument("--base", required=True, help="the build, as perfgate's --base takes it")
    parser.add_argument("--gpus", required=True, help="indices")
    parser.add_argument("--minutes", type=float, required=True, help="until everything has ended")
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    gpus = given.gpus.split(",")
    everywhere = {**os.environ, "CUDA_VISIBLE_DEVICES": given.gpus, "RAY_USAGE_STATS_ENABLED": "0"}
    start = [*RAY, "start", "--head", "--num-gpus", str(len(gpus)), "--include-dashboard", "false"]
    subprocess.run(start, env=everywhere, check=True)
    try:
        ways = [("ray", ["--on", "auto"], everywhere), ("alone", [], {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[0]})]
        worst = 0
        for name, more, environment in ways:
            budget = f"{(until_s - time.monotonic()) / 60:.1f}"
            words = [*map(str, given.scenario), "--base", given.base, "--head", given.base, "--budget", budget, *more]
            begun_s = time.monotonic()
            status = subprocess.run(
                [sys.executable, "-m", "perfgate", "run", *words], env=environment, check=False
            ).returncode
            took_min = (time.monotonic() - begun_s) / 60
            print(f"{name}: {len(given.scenario)} scenarios, exit {status} after {took_min:.2f} min", flush=True)
            worst = max(worst, status)
    finally:
        subprocess.run([*RAY, "stop", "--force"], check=False)
    raise SystemExit(worst)


if __name__ == "__main__":
    main()
