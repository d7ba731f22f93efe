"""A runner for the steps of an action or a job: it reads them out of the YAML and runs their very lines with bash.

As much of GitHub's runner as the actions of this repository use: inputs, outputs, ``if: always()``, one summary, and
artifacts, which go up to a :class:`fake_github.FakeGitHub`. What it does not know is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_github import FakeGitHub
from git_project import SETTINGS
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
LADDER = ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5), (signal.SIGKILL, 10.0))
"""How a runner cancels a step: signals to the process it started, with the seconds that each is given."""


def read_yaml(file: Path) -> Any:
    """A workflow or an action; YAML 1.2 by which ``on`` is no boolean."""
    return YAML(typ="safe", pure=True).load(file)


@dataclass
class Step:
    """How a step ended: its outcome as GitHub calls it, its status, and what it printed."""

    outcome: str
    status: int = 0
    log: str = ""
    seconds: float = 0.0


@dataclass
class ActionRunner:
    """One job that uses an action.

    Args:
        action: Its ``action.yml``.
        temp: ``RUNNER_TEMP``, empty.
        workspace: The checkout.
        environment: What the runner gives to every step beside what is set here.
        inputs: Inputs that are not left at their defaults.
        artifacts: Where artifacts go up.
        cancel: Called with a running step's id and process; when it returns true, the job is cancelled.
        steps: How each step ended, by id.
        outputs: Outputs of each step, by id.
    """

    action: Path
    temp: Path
    workspace: Path
    environment: Mapping[str, str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    artifacts: FakeGitHub | None = None
    cancel: Callable[[str, int], bool] = lambda *_: False
    steps: dict[str, Step] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    result: str = "success"
    summary: str = ""

    def run(self) -> str:
        """Run all steps as GitHub does; the job's result, ``success``, ``failure`` or ``cancelled``."""
        self.temp.mkdir()
        action = read_yaml(self.action)
        self.inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()} | {**self.inputs}
        for step in action["runs"]["steps"]:
            name = step["id"]
            self.outputs[name] = {}
            if not self._wanted(step.get("if", "")):
                self.steps[name] = Step("skipped")
                continue
            done = self._shell(name, step) if "run" in step else self._upload(step["uses"], step["with"])
            self.steps[name] = done
            if done.outcome != "success" and self.result == "success":
                self.result = done.outcome
        return self.result

    def _wanted(self, condition: str) -> bool:
        parts = [part.strip() for part in condition.split("&&") if part.strip()]
        if parts[:1] != ["always()"] and self.result != "success":
            return False
        rest = parts[1:] if parts[:1] == ["always()"] else parts
        for part in rest:
            found = re.fullmatch(r"(\S+) != ''", part)
            assert found, f"no condition that this runner knows: {part}"
            if not self._value(found[1]):
                return False
        return True

    def _expand(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: self._value(found[1]), text)

    def _value(self, expression: str) -> str:
        if found := re.fullmatch(r"inputs\.([\w-]+)", expression):
            return self._expand(self.inputs[found[1]])
        if found := re.fullmatch(r"steps\.(\w+)\.outputs\.(\w+)", expression):
            return self.outputs[found[1]].get(found[2], "")
        known = {"runner.temp": str(self.temp), "github.token": self.environment.get("TOKEN", "")}
        return known[expression]

    def _shell(self, name: str, step: Mapping[str, Any]) -> Step:
        assert step["shell"] == "bash"
        script = self.temp / f"{name}.sh"
        script.write_text(self._expand(step["run"]))
        files = {kind: self.temp / f"{name}.{kind}" for kind in ("output", "summary", "log")}
        for file in files.values():
            file.touch()
        environment = {
            **os.environ, **self.environment, **{k: self._expand(str(v)) for k, v in step.get("env", {}).items()},
            "RUNNER_TEMP": str(self.temp), "GITHUB_ACTION_PATH": str(self.action.parent),
            "GITHUB_OUTPUT": str(files["output"]), "GITHUB_STEP_SUMMARY": str(files["summary"]),
        }  # fmt: skip
        argv = [
            "bash",
            "--noprofile",
            "--norc",
            "-e",
            "-o",
            "pipefail",
            str(script),
        ]  # as GitHub documents `shell: bash`
        with files["log"].open("wb") as log:
            process = subprocess.Popen(argv, cwd=self.workspace, env=environment, stdout=log, stderr=subprocess.STDOUT)
            began = time.monotonic()
            while process.poll() is None:
                if self.cancel(name, process.pid):
                    self.result, began = "cancelled", time.monotonic()
                    _cancel(process)
                time.sleep(0.01)
        self.outputs[name] = read_outputs(files["output"].read_text())
        self.summary += files["summary"].read_text()
        outcome = "success" if process.returncode == 0 else "failure"
        return Step(outcome, process.returncode, files["log"].read_text(), time.monotonic() - began)

    def _upload(self, uses: str, words: Mapping[str, Any]) -> Step:
        assert uses.startswith("actions/upload-artifact@")
        assert words["overwrite"] is True
        first, *others = self._expand(words["path"]).split("\n")
        folder = Path(first)
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        for pattern in filter(None, others):
            assert pattern.startswith("!")
            left_out = _glob(pattern[1:])
            files = [file for file in files if not left_out.fullmatch(str(file))]
        if not files:
            return Step("failure")
        assert self.artifacts is not None
        name = self._expand(words["name"])
        self.artifacts.artifacts = [item for item in self.artifacts.artifacts if item["name"] != name]
        self.artifacts.add_artifact(name, {str(file.relative_to(folder)): file.read_bytes() for file in files})
        return Step("success")


def job_step(workflow: Path, job: str, action: str) -> Any:
    """The step of a workflow's job that uses an action of ours."""
    steps = read_yaml(workflow)["jobs"][job]["steps"]
    (found,) = [step for step in steps if step.get("uses", "").startswith(f"OWNER/perfgate{action}@")]
    return found


def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern as upload-artifact reads it: one star stays within a folder, two between slashes span any number."""
    words = {"/**/": "/(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile(re.sub(r"/\*\*/|\*\*|\*|[^*]+?", lambda word: words.get(word[0], re.escape(word[0])), pattern))


def _cancel(process: subprocess.Popen[bytes]) -> None:
    for number, wait_s in LADDER:
        process.send_signal(number)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        return


def read_outputs(text: str) -> dict[str, str]:
    """``name=value`` lines, and values between delimiters."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n")[:-1])
    for line in lines:
        name, mark, end = line.partition("<<")
        if mark:
            found[name] = "\n".join(iter(lambda: next(lines), end))
        else:
            name, _, found[name] = line.partition("=")
    return found


def clone(origin: Path, folder: Path, branch: str) -> Path:
    """A fresh checkout of a branch with the whole history, as actions/checkout makes it: HEAD is detached."""
    if folder.exists():
        shutil.rmtree(folder)
    git(Path(tempfile.gettempdir()), "clone", "--quiet", str(origin), str(folder))
    git(folder, "checkout", "--quiet", "--detach", f"origin/{branch}")
    return folder


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    argv = ["git", "-c", "init.defaultBranch=main", "-C", str(folder), *words]
    environment = {**os.environ, **SETTINGS}
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout.strip()
