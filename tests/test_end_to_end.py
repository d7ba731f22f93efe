"""The whole gate on a real engine, as a user runs it: one process, its output, its exit status, its run folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CPU_TINY = ROOT / "scenarios" / "cpu-tiny.yaml"
PLANTS = ROOT / "tests" / "plants"
REGRESSED, INCONCLUSIVE, NOT_MEASURED = 10, 20, 22

pytestmark = pytest.mark.engine


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


def perfgate(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run perfgate in a folder without a perfgate.toml of its own."""
    command = [sys.executable, "-m", "perfgate", *words]
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


def test_engine_flag_against_its_absence(tmp_path: Path, engine_python: str) -> None:
    """An engine flag on the head alone makes an A/B of one build that ends in a verdict."""
    run = run_gate(tmp_path, *both(engine_python, "args.max_num_seqs=8"))

    assert run.status in (0, INCONCLUSIVE), run.stdout + run.stderr
    assert run.verdict["cells"][0]["pairs"] >= 4
    manifest = json.loads((run.folder / "run.json").read_text())
    assert {k: v["args"] for k, v in manifest["subjects"].items()} == {"base": {}, "head": {"max_num_seqs": 8}}
    assert_judged_again(run, tmp_path / "elsewhere")


def test_head_that_cannot_start_is_not_measured(tmp_path: Path, engine_python: str) -> None:
    """A head whose engine refuses to start ends 22 with the engine's own last error line."""
    run = run_gate(tmp_path, *both(engine_python, "args.max_model_len=-7"))

    assert run.status == NOT_MEASURED, run.stdout + run.stderr
    assert "engine-start-failed" in run.stdout
    log = next((run.folder / "trials").glob("001/engine.log")).read_text()
    reported = run.verdict["cells"][0]["reasons"][0]["text"]
    assert any(line.strip() and line.strip() in log and "rror" in line for line in reported.splitlines()), reported
    assert_judged_again(run, tmp_path / "elsewhere")


def test_other_tokens_carry_a_caution(tmp_path: Path, engine_python: str) -> None:
    """A head that generates other tokens at the same speed carries outputs-differ."""
    run = run_gate(tmp_path, *both(engine_python, f"path={PLANTS / 'other_tokens'}"), "--quick")

    assert run.status == INCONCLUSIVE, run.stdout + run.stderr
    assert "outputs-differ" in {caution["code"] for caution in run.verdict["cells"][0]["cautions"]}
    assert_judged_again(run, tmp_path / "elsewhere")


def test_unknown_key_ends_before_anything_starts(tmp_path: Path, engine_python: str) -> None:
    """A misspelt key ends 2 with its line and column, and makes no run folder."""
    text = CPU_TINY.read_text().replace("workload: {batch:", "workload: {bacth:")
    scenario = tmp_path / "cpu-tiny.yaml"
    scenario.write_text(text)
    line = next(n for n, content in enumerate(text.splitlines(), 1) if "bacth" in content)

    ended = perfgate("run", str(scenario), *both(engine_python), cwd=tmp_path)

    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert f"{scenario}:{line}:12: workload.bacth: unknown key (did you mean 'batch'?)" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_an_envelope_is_learnt_and_catches_a_kernel(tmp_path: Path, engine_python: str) -> None:
    """What a build runs is written down; a head with one kernel more a layer ends 10 with a diff that says so."""
    shutil.copytree(CPU_TINY.parent / "models", tmp_path / "models")
    scenario = shutil.copy(CPU_TINY, tmp_path)
    (tmp_path / "perfgate.toml").touch()
    base = ("--base", f"python={engine_python}", "--runs", str(tmp_path / "learnt"))

    learnt = perfgate("envelope", "learn", str(scenario), *base, cwd=tmp_path)
    assert learnt.returncode == 0, learnt.stderr
    assert Path(scenario).read_text().startswith(CPU_TINY.read_text().rstrip())

    words = [*both(engine_python, f"path={PLANTS / 'extra_kernel'}"), "--format", "text"]
    checked = perfgate("envelope", "check", str(scenario), *words, cwd=tmp_path)

    assert checked.returncode == REGRESSED, checked.stdout + checked.stderr
    assert "reason outside-envelope (cpu-tiny): head: 30 of 30 steps" in checked.stdout
    assert "one more elementwise kernel a layer (4)" in checked.stdout
