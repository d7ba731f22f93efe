"""A host of a self-hosted runner that is not there: what .github/runner installs, in a folder, with a stand-in GPU."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fake_nvml import FakeMachine
from perfgate_process import DEADLINE_S

from perfgate.machine.locks import STATE

RUNNER = Path(__file__).parents[1] / ".github" / "runner"
STANDIN = Path(__file__).parent / "standins" / "nvidia-smi"
PERFGATE = Path(sys.executable).with_name("perfgate")

JOB = {"RUNNER_NAME": "runner-1", "GITHUB_RUN_ID": "4711", "GITHUB_RUN_ATTEMPT": "1"}
RUNNER_FOLDER = "/home/runner/actions-runner"
HOOKS = "usr/local/lib/perfgate-runner"

Ended = subprocess.CompletedProcess[str]


class Host:
    """Everything below one folder; programs run as whoever runs the tests.

    Args:
        folder: An empty folder.
        machine: Its GPUs.
        state: Where perfgate's locks and leases lie.
    """

    def __init__(self, folder: Path, machine: FakeMachine, state: Path) -> None:
        self.machine = machine
        self.root = folder / "root"
        self.runner = self.root / RUNNER_FOLDER.lstrip("/")
        self.work = self.runner / "_work"
        (self.work / "_temp").mkdir(parents=True)
        self._state = state
        # The helper hands nvidia-smi no environment, so the stand-in is told in a script of its own where its GPUs are.
        self.nvidia_smi = folder / "nvidia-smi"
        words = ["env", f"FAKE_NVML={machine.file}", sys.executable, str(STANDIN)]
        self.nvidia_smi.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        self.nvidia_smi.chmod(0o755)

    def install(self, *options: str, user: str | None = None) -> Ended:
        """Run the installer for this host."""
        user = user or pwd.getpwuid(os.getuid()).pw_name
        programs = ["--perfgate", str(PERFGATE), "--nvidia-smi", str(self.nvidia_smi), "--min-free-gib", "0"]
        words = [str(RUNNER / "install"), "--user", user, "--runner-folder", RUNNER_FOLDER, *programs, *options]
        return _run(words, {**os.environ, "DESTDIR": str(self.root)})

    def configure(self, name: str, value: str) -> None:
        """Change a setting of the hooks."""
        file = self.root / HOOKS / "runner.conf"
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", file.read_text(), flags=re.MULTILINE)
        assert count == 1
        file.write_text(text)

    def hook(self, name: str, **variables: str) -> Ended:
        """Run ``job-started`` or ``job-completed`` as GitHub's runner does."""
        return _run(self._words(name), self._variables | variables)

    def start_hook(self, name: str) -> subprocess.Popen[str]:
        """Likewise, but do not wait for its end."""
        return subprocess.Popen(self._words(name), env=self._variables, stdout=subprocess.PIPE, text=True)

    def _words(self, name: str) -> list[str]:
        return ["bash", "-e", str(self.root / HOOKS / f"{name}.sh")]

    @property
    def _variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "RUNNER_TEMP": str(self.work / "_temp"),
            STATE: str(self._state),
            **JOB,
            **self.machine.environment,
        }

    def clocks(self, *words: str, **variables: str) -> Ended:
        """Run the clock helper as sudo does, but for the user."""
        return _run([str(self.root / "usr/local/sbin/perfgate-clocks"), *words], variables)

    def files(self) -> dict[str, int]:
        """Every file and folder below the root with its mode."""
        return {str(file.relative_to(self.root)): file.stat().st_mode & 0o7777 for file in self.root.rglob("*")}


def _run(words: Sequence[str], variables: dict[str, str]) -> Ended:
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
