"""24 cells on three Ray nodes of this machine that lose their command, actor and a node, held beside a run alone.

``python research/three_ray_nodes.py [--engine .engine/bin/python] [--cells 24] [--folder FOLDER]``

Base against base, each cell with four pairs or more and margins that no neighbour's work reaches. Without
``--engine`` the stand-in of ``tests/stub_engine.py`` generates. The command is killed once a tenth of the trials are
here, the actor once it has half as many more; ``--resume`` goes on, and the third node is killed in the middle. Prints
what there was by then and how long each part took. Ends with 1 if something that was kept is lost, something is left
running, or a cell's verdict differs from that of the run alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from conftest import CONFIG  # noqa: E402 (the line above lets it be found)
from stub_engine import write_stub  # noqa: E402
from three_nodes import CLASS, ThreeNodes, engines, kept, three_nodes, trials_with_the_actor  # noqa: E402

from perfgate.judge.outcome import Outcome  # noqa: E402 (sorted after what the tests bring)
from perfgate.machine.locks import STATE  # noqa: E402

TRIALS = 9
"""Of a cell that passes at its first look: four pairs and a warm-up trial."""
VLLM = (
    "dtype: bfloat16, max_model_len: 128, max_num_seqs: 4, enable_prefix_caching: false, enforce_eager: true, "
    "kv_cache_memory_bytes: 8388608"
)
SCENARIO = """\
schema: 1
name: many
engine: {{model: {{config: model}}, args: {{{args}}}, env: {{{env}, PERFGATE_PROBE: '0'}}}}
workload: {{batch: 2, input_tokens: 8, output_tokens: 12}}
matrix: {{output_tokens: {lengths}}}
measure: {{warmup_iterations: 1, iterations: 8, looks: [4, 6, 8]}}
gates: [{{metric: itl_median, ignorable: 100%, must_catch: 900%}}]
"""
"""Without a probe: on a busy CPU its readings show states."""
CELLS = "runs/*.cluster/cells/*/*/run.json"
BEGAN_S = time.monotonic()


def main() -> None:
    """Measure on the cluster, then alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, help="the interpreter of a vLLM for the CPU")
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--folder", type=Path, help="where to measure, by default a new one")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="three-ray-nodes-"))).resolve()
    words = written(folder, given.engine, given.cells)
    os.environ[STATE] = str(folder / "locks")
    with pytest.MonkeyPatch.context() as patch, three_nodes(folder / "nodes", patch) as cluster:
        faults = on_cluster(folder, cluster, words, given.cells * TRIALS)
    faults += [f"left behind: {one.name}" for one in folder.glob("temporary/perfgate-cluster-*")]
    tell("alone it begins")
    tell(f"alone it ended with {started(folder, [*words, '--runs', 'alone']).wait()}")
    joined, alone = (verdicts(folder / runs) for runs in ("runs", "alone"))
    faults += [f"{cell}: {joined[cell]} and alone {alone[cell]}" for cell in alone if joined[cell] != alone[cell]]
    print(
        f"{len(alone)} cells alone: {dict(Counter(alone.values()))}; on the cluster: {dict(Counter(joined.values()))}"
    )
    print("\n".join(faults) or "nothing is lost, nothing left running, and each verdict is that of the run alone")
    sys.exit(bool(faults))


def written(folder: Path, engine: Path | None, cells: int) -> list[str]:
    """Write what is measured, and return the words that measure it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2, "vocab_size": 512}))
    (folder / "perfgate.toml").write_text(f'[machines.{CLASS}]\nscenarios = "*.yaml"\nlabels = "{CLASS}"\n')
    if engine:
        settings = {"args": VLLM, "env": "VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: '1'"}
        base = ["--base", f"python={engine.absolute()}"]
    else:
        write_stub(folder / "stub")
        settings = {"args": "max_num_seqs: 2", "env": "STUB_MODE: none"}
        base = ["--base", f"python={sys.executable}", "--base", f"path={folder / 'stub'}"]
    (folder / "many.yaml").write_text(SCENARIO.format(**settings, lengths=[*range(12, 12 + cells)]))
    head = [{"--base": "--head"}.get(word, word) for word in base]
    return ["many.yaml", *base, *head, "--seed", "1"]


def on_cluster(folder: Path, cluster: ThreeNodes, words: Sequence[str], trials: int) -> list[str]:
    """Measure, and kill the command, the actor and a node on the way; what is wrong in the end."""
    on = ("--on", cluster.address)
    first = started(folder, [*words, *on])
    wait(lambda: len(kept(folder)) >= trials // 10, first)
    first.kill()
    first.wait()
    tell(f"the command is killed, {len(kept(folder))} trials are here")
    wait(lambda: trials_with_the_actor(folder) >= trials // 10 + trials // 20)
    with_actor, actor = trials_with_the_actor(folder), cluster.actor()
    if actor is None:
        raise SystemExit("there is no actor")
    actor.kill()
    tell(f"the actor is killed, it had {with_actor} trials")
    wait(lambda: not engines(folder, CELLS))
    (run,) = folder.glob("runs/*.cluster")

    begun = kept(folder)
    second = started(folder, ["--resume", run.stem, *on])
    wait(lambda: len(kept(folder)) >= trials // 2, second)
    cluster.kill("third")
    middle = kept(folder)
    tell(f"the third node is killed, {len(middle)} trials are here")
    tell(f"it ended with {second.wait()}, {len(kept(folder))} trials are here")
    faults = [
        f"lost: {len(some - kept(folder))} trials that were here" for some in (begun, middle) if some - kept(folder)
    ]
    if "trials that an earlier actor kept are taken over" not in (folder / "output").read_text():
        faults.append("lost: trials of the actor")
    wait(lambda: cluster.actor() is None)
    return faults + [f"left running: {name}" for name, _ in engines(folder, CELLS)]


def started(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """``perfgate run`` as a process."""
    with (folder / "output").open("ab") as output:
        call = [sys.executable, "-m", "perfgate", "run", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(call, cwd=folder, stdout=output, stderr=output, env=environment)


def wait(condition: Callable[[], bool], command: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until it holds: while a command runs where one is given, else for ten minutes."""
    until_s = time.monotonic() + (600 if command is None else math.inf)
    while not condition():
        if command and command.poll() is not None:
            raise SystemExit(f"perfgate ended with {command.returncode} before")
        if time.monotonic() > until_s:
            raise SystemExit("what should have ended is still there after ten minutes")
        time.sleep(0.2)


def verdicts(runs: Path) -> dict[str, str]:
    """Of each cell of the one run there."""
    (file,) = runs.glob("*/verdict.json")
    return {cell.name: cell.verdict for cell in Outcome.model_validate_json(file.read_bytes()).cells}


def tell(what: str) -> None:
    """Print it with the seconds since the beginning."""
    print(f"{time.monotonic() - BEGAN_S:7.0f} s: {what}", flush=True)


if __name__ == "__main__":
    main()
