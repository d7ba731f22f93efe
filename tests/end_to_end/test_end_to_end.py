"""The whole gate on a real engine, as a user runs it: one process, its output, its exit status, its run folder.

An engine takes eight seconds to start, so tests share runs where one run shows several facts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_scenario import ITERATIONS, LAYERS, OUTPUT_TOKENS, write_engine_scenario
from perfgate_process import marking

from perfgate.machine.locks import STATE
from perfgate.metrics.catalogue import METRICS, trial_value
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_records, read_run

ROOT = Path(__file__).parents[2]
CPU_TINY = ROOT / "scenarios" / "cpu-tiny.yaml"
PLANTS = ROOT / "drills"
REGRESSED, INCONCLUSIVE, NOT_MEASURED = 10, 20, 22


@dataclass(frozen=True)
class Ended:
    """A perfgate process that ended, and the run folder it made."""

    status: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def verdict(self) -> dict[str, Any]:
        """``verdict.json`` as read."""
        found: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return found

    @property
    def record(self) -> Record:
        """The record of its only cell."""
        (found,) = read_records(self.folder, read_run(self.folder))
        return found


def perfgate(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run perfgate in a folder, with host locks of its own: tests at once do not wait for each other."""
    command = [*marking("PERFGATE_TESTED_ENGINE"), *words]
    env = {**(os.environ if env is None else env), STATE: str(cwd / "state")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False)


def run_gate(tmp_path: Path, *words: str, scenario: Path = CPU_TINY) -> Ended:
    """Run a scenario into a fresh folder."""
    ended = perfgate("run", str(scenario), *words, "--format", "text", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    return Ended(ended.returncode, ended.stdout, ended.stderr, folder)


def assert_judged_again(run: Ended, elsewhere: Path) -> None:
    """``perfgate judge`` on a copy of the run folder repeats text, status and verdict where no engine can be found."""
    shutil.copytree(run.folder, elsewhere)
    (elsewhere / "verdict.json").unlink()
    bare = {"PATH": os.defpath, "HOME": str(elsewhere)}

    again = perfgate("judge", str(elsewhere), "--format", "text", cwd=elsewhere, env=bare)

    assert (run.status, run.stdout) == (again.returncode, again.stdout), again.stderr
    assert (run.folder / "verdict.json").read_bytes() == (elsewhere / "verdict.json").read_bytes()


def both(python: str, *head: str) -> Sequence[str]:
    """Words for the engine environment on both sides, and what is special about the head."""
    return ["--base", f"python={python}", *(part for word in head for part in ("--head", word))]


@pytest.mark.engine(starts=2)
def test_head_that_cannot_start_is_not_measured(tmp_path: Path, engine_python: str) -> None:
    """A head whose engine refuses to start ends 22 with the engine's own last error line: here a plant's.

    The scenario is the shipped one, with caches of its own for each side; the base has run it.
    """
    nonsense = (f"path={PLANTS / 'extra_kernel'}", "env.PERFGATE_PLANT_EVERY=0")
    run = run_gate(tmp_path, *both(engine_python, *nonsense))

    assert run.status == NOT_MEASURED, run.stdout + run.stderr
    assert "engine-start-failed" in run.stdout
    said = "extra_kernel: PERFGATE_PLANT_EVERY='0', expected a number above 0"
    assert said in run.verdict["cells"][0]["reasons"][0]["text"]
    assert said in next((run.folder / "trials").glob("001/engine.log")).read_text()
    base, head = run.record.trials
    assert (base.failure, len(base.iterations)) == (None, 4)
    assert head.failure is not None
    assert_judged_again(run, tmp_path / "elsewhere")


@pytest.mark.engine(starts=2)
def test_plugins_and_a_flag_on_the_head(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """One build is held against itself with an engine flag and two plugins, and every timed metric has values.

    One generates other tokens at the same speed: the report carries outputs-differ, and no trial a caution. The other
    keeps a mebibyte of each request, by which the head's memory grows. The head's only rank is a process of its own,
    which can be probed too.
    """
    scenario = write_engine_scenario(tmp_path, engine_cache)
    own = {"max_num_seqs": 8, "distributed_executor_backend": "mp"}
    words = both(
        engine_python,
        *(f"path={PLANTS / name}" for name in ("other_tokens", "kept_requests")),
        "env.PERFGATE_PLANT_KIB=1024",
        *(f"args.{name}={value}" for name, value in own.items()),
    )

    run = run_gate(tmp_path, *words, "--quick", scenario=scenario)

    assert run.status == INCONCLUSIVE, run.stdout + run.stderr
    manifest = json.loads((run.folder / "run.json").read_text())
    assert {k: v["args"] for k, v in manifest["subjects"].items()} == {"base": {}, "head": own}
    assert "outputs-differ" in {caution["code"] for caution in run.verdict["cells"][0]["cautions"]}
    ((base, head),) = run.record.pairs("timed")
    tokens = [{iteration.tokens_digest for iteration in trial.iterations} for trial in (base, head)]
    assert [len(digests) for digests in tokens] == [ITERATIONS, ITERATIONS]
    assert not tokens[0] & tokens[1]
    for trial in (base, head):
        assert_all_is_timed(trial)
    assert base.memory is not None
    assert head.memory is not None
    kept = [memory.resident[-1] - memory.resident[0] for memory in (base.memory, head.memory)]
    assert kept[1] - kept[0] > (ITERATIONS - 2) * 4 << 20
    assert_judged_again(run, tmp_path / "elsewhere")


def assert_all_is_timed(trial: Trial) -> None:
    """A trial has a value of every timed metric but those of a GPU, its versions, each step's time, and probes."""
    missing = {name for name, metric in METRICS.items() if metric.kind == "timed" and trial_value(name, trial) is None}
    of_a_gpu = {"peak_memory", "activation_memory", "memory_fragmentation", "device_memory_growth"}
    of_a_server = {"max_rate", "request_throughput", "queue_time", "kv_use", "prefix_hit_share", "preemptions"}
    of_a_server |= {"draft_acceptance"}
    assert missing == {"energy_per_token", "mbu", "mfu", "start_time_cold", *of_a_gpu, *of_a_server}
    assert trial.cautions == ()
    assert {"vllm", "torch", "python"} <= set(trial.versions)
    assert [len(iteration.itl_ns) for iteration in trial.iterations] == [OUTPUT_TOKENS - 2] * ITERATIONS
    probes = [iteration.probe_ns for iteration in trial.iterations if iteration.probe_ns]
    assert [(len(probe.before), len(probe.after)) for probe in probes] == [(1, 1)] * ITERATIONS


@pytest.mark.slow
@pytest.mark.engine(starts=4)
def test_an_envelope_is_learnt_and_catches_a_kernel(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """What a build runs is written down; a head with one kernel more in one layer ends 10 with a diff that says so."""
    scenario = write_engine_scenario(tmp_path, engine_cache)
    before = scenario.read_text()
    base = ("--base", f"python={engine_python}", "--runs", str(tmp_path / "learnt"))

    learnt = perfgate("envelope", "learn", str(scenario), *base, cwd=tmp_path)
    assert learnt.returncode == 0, learnt.stderr
    assert scenario.read_text().startswith(before.rstrip())
    (folder,) = (tmp_path / "learnt").iterdir()
    (record,) = read_records(folder, read_run(folder))
    assert_every_step_is_traced(record)

    words = [*both(engine_python, f"path={PLANTS / 'extra_kernel'}", f"env.PERFGATE_PLANT_EVERY={LAYERS}")]
    checked = perfgate("envelope", "check", str(scenario), *words, "--format", "text", cwd=tmp_path)

    assert checked.returncode == REGRESSED, checked.stdout + checked.stderr
    steps = 2 * (OUTPUT_TOKENS - 1)
    assert f"reason outside-envelope (tiny): head: {steps} of {steps} steps" in checked.stdout
    assert "one more elementwise kernel" in checked.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert "outputs-differ" not in (run / "verdict.json").read_text()


def assert_every_step_is_traced(record: Record) -> None:
    """On the CPU operators are the kernels: all steps of two iterations run the same ones, attention in each layer."""
    ((trial, _),) = record.pairs("traced")
    assert [iteration.probe_ns for iteration in trial.iterations] == [None, None]
    (pattern,) = trial.decode.patterns
    assert pattern.steps == 2 * (OUTPUT_TOKENS - 1)
    names = [trial.decode.keys[key].name for key in pattern.kernels]
    assert sum("unified_attention" in name for name in names) == LAYERS
    assert trial.decode.role_ns["gemm"]
