"""What GitHub gives a job and takes from it: the event, files for summary and outputs; and what its steps hand on."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from perfgate.errors import ExitStatus, UsageError
from perfgate.github.api import Api, PullRequest
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.json_text import read_json
from perfgate.machine.versioned_json import first_problem, read_model, write_model
from perfgate.models import Frozen, absent
from perfgate.record.run_names import NIGHT, RUN

REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
# The branch that an approved pull request is pushed to, so that its code runs here
PUSHED_REQUEST = re.compile(r"(?:refs/heads/)?pull-request/([1-9][0-9]{0,8})")

Command = Literal["run", "nightly", "judge"]

_Part = TypeVar("_Part", bound=BaseModel)


class JobPlan(Frozen):
    """What the steps of one measuring job have in common; written by the first, read by the others."""

    format: Literal["perfgate-job/1"] = "perfgate-job/1"
    repository: str  # `owner/name`
    pull_request: int | None  # its number; `None` where none is judged
    base_branch: str  # where scenarios, margins, baselines and `perfgate.toml` come from
    base: str  # commit of that branch
    merge_base: str  # commit that the head is compared with
    head: str  # commit under test
    policy: Path  # folder with the working tree of `base`
    scenarios: tuple[str, ...]  # scenario files, from that folder
    changed: tuple[str, ...]  # what the head changes of all that it is judged by, and does not count yet
    artifact: str  # name of the run folder's artifact: the same for the same head, merge base and cells
    command: Command = "run"  # what of perfgate measures
    words: tuple[str, ...]  # what follows it
    runs: Path  # folder of the run folders
    # Where other jobs' shards are, which this one judges; `None`, and not written, for any other job
    shards: Path | None = Field(default=None, exclude_if=absent)

    @property
    def whole(self) -> bool:
        """Whether its verdict is that of all that is measured, and not of one shard."""
        return "--shard" not in self.words

    @property
    def may_be_resumed(self) -> bool:
        """Whether trials of an earlier attempt may count: not those of a night, which a baseline may rest on.

        A run against baselines keeps copies of them, which nobody could tell from forged ones.
        """
        return self.command == "run" and "--against" not in self.words

    @property
    def run_folder(self) -> Path | None:
        """The one run folder of this job; ``None`` where there is none with a manifest."""
        manifests = {"run": [RUN], "nightly": [NIGHT], "judge": [NIGHT, RUN]}[self.command]
        return next((file.parent for name in manifests for file in sorted(self.runs.glob(f"*/{name}"))), None)


@dataclass(frozen=True)
class GithubJob:
    """The job that this process is a step of."""

    environment: Mapping[str, str]  # variables that the runner set

    @classmethod
    def here(cls) -> GithubJob:
        """The job whose environment this process has."""
        return cls(dict(os.environ))

    def variable(self, name: str) -> str:
        """A variable that every job has.

        Raises:
            UsageError: It is not set, so this is not a job.
        """
        if not (value := self.environment.get(name, "")):
            raise UsageError(f"not in a GitHub job: {name} is not set")
        return value

    @property
    def api(self) -> Api:
        """The API of its server, with its token."""
        url = self.environment.get("GITHUB_API_URL", "https://api.github.com")
        return Api(url, self.environment.get("GITHUB_TOKEN", ""))

    @property
    def repository(self) -> str:
        """``owner/name``.

        Raises:
            UsageError: This is not a job.
        """
        name = self.variable("GITHUB_REPOSITORY")
        if not REPOSITORY.fullmatch(name):
            raise UsageError(f"GITHUB_REPOSITORY is {name!r}, expected owner/name")
        return name

    def event(self, model: type[_Part], part: str) -> _Part:
        """A part of what started the workflow, as GitHub wrote it down: its repository, pull request or run.

        Raises:
            UsageError: This is not a job, or its event cannot be read or has no such part.
        """
        file = Path(self.variable("GITHUB_EVENT_PATH"))
        try:
            content = read_json(file)
            return model.model_validate(content.get(part, {}) if isinstance(content, dict) else content)
        except ValidationError as error:
            problem = f"the event's {part} cannot be read: {first_problem(error)}"
            raise UsageError(problem, where=str(file)) from error
        except (OSError, ValueError) as error:
            raise UsageError(f"the event cannot be read: {error}", where=str(file)) from error

    def listed_at(self, checked_out: str) -> str:
        """Commit at which GitHub lists this job's run and its artifacts.

        On ``pull_request`` that is the change's own head, while what is checked out is its merge with the base.

        Raises:
            UsageError: This is not a job, or its event names no commit.
        """
        if self.variable("GITHUB_EVENT_NAME") != "pull_request":
            return checked_out
        return self.event(PullRequest, "pull_request").head.sha

    def page_of(self, run_id: int | str) -> str:
        """Address of the page of a workflow run of this repository."""
        server = self.environment.get("GITHUB_SERVER_URL", "https://github.com")
        return f"{server}/{self.repository}/actions/runs/{run_id}"

    @property
    def folder(self) -> Path:
        """Where the steps of this job keep what is theirs; the runner empties it."""
        return Path(self.variable("RUNNER_TEMP")) / "perfgate"

    def write_plan(self, plan: JobPlan) -> None:
        """Hand the plan on to the next steps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_model(self.folder / "job.json", plan)

    def read_plan(self) -> JobPlan | None:
        """The plan of the first step; ``None`` where that failed.

        Raises:
            RecordError: Another version wrote it.
        """
        file = self.folder / "job.json"
        return read_model(JobPlan, file) if file.exists() else None

    def prepared(self) -> JobPlan:
        """The plan of the first step.

        Raises:
            UsageError: That failed.
        """
        if (plan := self.read_plan()) is None:
            raise UsageError("nothing is prepared", remedy="Run perfgate github prepare first.")
        return plan

    def write_status(self, status: int) -> None:
        """Hand on what measuring ended with."""
        write_atomically(self.folder / "status", f"{status}\n")

    @property
    def status(self) -> ExitStatus:
        """What measuring ended with: interrupted where it began and left nothing, usage where it never began."""
        try:
            return ExitStatus(int((self.folder / "status").read_bytes()))
        except FileNotFoundError:
            return ExitStatus.USAGE if self.read_plan() is None else ExitStatus.INTERRUPTED
        except ValueError:  # something else wrote it
            return ExitStatus.INTERNAL_ERROR

    def add_summary(self, text: str) -> None:
        """Show Markdown on the page of the run; without a runner nothing is shown."""
        self._append("GITHUB_STEP_SUMMARY", text)

    def set_outputs(self, outputs: Mapping[str, str | int]) -> None:
        """Set outputs of this step; each between delimiters that no value can foresee."""
        mark = f"end-{secrets.token_hex(16)}"
        self._append("GITHUB_OUTPUT", "".join(f"{name}<<{mark}\n{value}\n{mark}\n" for name, value in outputs.items()))

    def _append(self, variable: str, text: str) -> None:
        if file := self.environment.get(variable):
            with Path(file).open("a", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
