"""A git repository whose commits say how slow their build is, and a collector that believes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fake_collector import FakeCollector, FakeSpec
from git_project import GitProject

from perfgate.capture.job import Job
from perfgate.metrics.trial import Failure, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

ROOT = Path(__file__).parents[1]
SPEED = "speed"
"""The file of a commit that says how long its decode step takes, over the first one's; ``broken`` does not build."""
RECIPE = """
[build]
path = "{tree}"
commands = [["sh", "-ec", "echo {commit} >> '{here}/made'; test ! -e '{here}/down'; ! grep -q broken speed"]]
"""
SCENARIO = """\
schema: 1
name: searched
engine: {model: {config: model}}
workload: {batch: 2, input_tokens: 4, output_tokens: 8}
measure: {warmup_iterations: 0, iterations: 2, looks: [4, 6, 8, 12]}
gates: [{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}]
"""


class CommitCollector:
    """Invents trials as the commits say.

    Args:
        spec: What all builds have in common.
        dies: Commits whose engine fails, by what they say.
        before: Called before each trial, to stop a search at one.
    """

    def __init__(
        self, spec: FakeSpec | None = None, dies: Sequence[str] = (), before: Callable[[Job], None] = lambda _: None
    ) -> None:
        self._spec = spec or FakeSpec(restart_sd=0.0007)
        self._dies = dies
        self._before = before
        self.taken = 0

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """Every build is there."""
        del cell, subject
        return None

    def release(self) -> None:
        """Nothing is started ahead."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Invent a trial of the commit that the subject was built from."""
        self._before(job)
        self.taken += 1
        said = (Path(job.subject.path[0]) / SPEED).read_text().strip()
        spec = replace(self._spec, step_s=5.3e-3 * (1.0 if said in self._dies else float(said)))
        if said in self._dies:
            spec = replace(spec, failures={job.index: "engine-start-failed"})
        step = job.run_folder.parent.name[:3]  # of a search; a run of its own has no number
        return FakeCollector(spec, seed=int(step) if step.isdecimal() else 0).collect(job, progress)


class CommitLine:
    """A repository with one commit for each speed, a recipe and a scenario.

    While there is a file ``down`` in it nothing builds.

    Args:
        folder: Its working tree.
        speeds: What each commit says.
    """

    def __init__(self, folder: Path, speeds: Sequence[str]) -> None:
        self.project = GitProject(folder)
        self.folder = folder
        shutil.copytree(ROOT / "scenarios" / "models" / "llama-tiny", folder / "model")
        files = {"perfgate.toml": RECIPE, "scenario.yaml": SCENARIO, ".gitignore": "/made\n/runs\n/down\n"}
        self.project.commit({**files, SPEED: f"{speeds[0]}\n"})
        self.project.import_commits([{SPEED: f"{speed}\n"} for speed in speeds[1:]])
        self.commits = self.project.git("rev-list", "--reverse", "HEAD").split()

    @property
    def made(self) -> list[str]:
        """Commits that were built, in order; a commit that was built twice is there twice."""
        file = self.folder / "made"
        return file.read_text().split() if file.exists() else []
