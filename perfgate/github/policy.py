"""What a change is judged by: the base branch's scenarios, margins, baselines and perfgate.toml, never its own.

A change that could loosen its own margins would be judged by nobody. What it alters of them is named in the report and
counts from its merge on.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from perfgate.errors import UsageError
from perfgate.github.api import Api, ApiError, MergeGroup, PullRequest, Repository
from perfgate.github.workflow_job import PUSHED_REQUEST, Command, GithubJob, JobPlan
from perfgate.machine.atomic_files import canonical_json, write_atomically
from perfgate.project.git import Git
from perfgate.record.shards import parse_shard_plan, parse_shards_left
from perfgate.scenario.declaration import load
from perfgate.scenario.fields import file_pattern
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject_words import anchored

Against = Literal["merge-base", "baseline"]
ALWAYS = ("perfgate.toml", "baselines")  # what decides beside the scenarios and what is in their folders
# Words of a ref that depends on what is checked out: `.`, `main...`, `HEAD~1`
_OF_THE_TREE = re.compile(r"ref=(\.|.*\.\.\.|(.*[^\w/-])?(HEAD|@)([^\w/-].*)?)")


class _Branch(BaseModel):
    protected: bool


_Answer = TypeVar("_Answer", bound=BaseModel)


@dataclass(frozen=True)
class Wanted:
    """What a workflow asks for."""

    scenarios: tuple[str, ...]  # patterns of scenario files, from the root of the repository
    command: Command = "run"  # what of perfgate measures
    against: Against = "merge-base"  # what the head is compared with
    # Words of the base's subject, paths from the checkout; the merge base's build where there are none
    base: tuple[str, ...] = ()
    # Words of the head's subject, paths from the checkout; the head's build where there are none
    head: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # further words of `perfgate run`
    shard: str = ""  # `K/N`, where the job measures one shard
    plan: str = ""  # what `perfgate plan` printed, where the job measures or judges shards
    shards: str = ""  # folder of the shards that the job judges
    left: str = ""  # what `perfgate plan --left` printed, where of the shard only that is measured


def make_plan(job: GithubJob, api: Api, wanted: Wanted, tree: Path) -> JobPlan:
    """Find out what is compared with what and by which scenarios; the base branch gets a working tree of its own.

    ``tree`` is the checkout with its whole history.

    Raises:
        UsageError: The checkout is shallow, the base branch has no such scenario, or what is wanted does not go
            together.
        ScenarioError: A scenario of the base branch is wrong.
    """
    if wanted.command == "nightly" and not wanted.base:
        remedy = "Name its subject in base, like ref=v1.0 (REFERENCE of the workflow): a build that stays the same."
        raise UsageError("a night needs a reference", remedy=remedy)
    if wanted.command == "nightly" and wanted.against == "baseline":
        text = "a night measures the head against its reference: against: baseline does not go with command: nightly"
        raise UsageError(text, remedy="Leave out against.")
    for word in (*wanted.base, *wanted.head):
        if _OF_THE_TREE.fullmatch(word):
            text = f"{word}: what is checked out where perfgate measures is the base branch, not the change"
            raise UsageError(text, remedy="Name a branch, a tag or a commit; without words it is the change's build.")
    pull_request, branch, base = _aim(job, api)
    git = Git(tree)
    base = base or f"refs/remotes/origin/{branch}"
    head = git.run("rev-parse", "--verify", "HEAD^{commit}").strip()
    try:
        base = git.run("rev-parse", "--verify", f"{base}^{{commit}}").strip()
        merge_base = git.run("merge-base", head, base).strip()
    except UsageError as error:
        remedy = "Check out the whole history: actions/checkout with fetch-depth: 0."
        raise UsageError(f"no merge base of HEAD and {branch}: {error.text}", remedy=remedy) from error
    policy = job.folder / "policy"
    if policy.exists():  # an earlier attempt at this step
        shutil.rmtree(policy)
    git.check_out(base, policy)
    scenarios = _scenarios(policy, wanted.scenarios)
    if not scenarios:
        raise UsageError(
            f"{branch} ({base[:12]}) has no scenario {' or '.join(wanted.scenarios)}",
            remedy="Changes are judged by the scenarios of the branch they aim at: merge those first.",
        )
    cells = sorted(cell.cell_id for file in scenarios for cell in resolve_cells(load(policy / file)))
    shards = tree / wanted.shards if wanted.command == "judge" else None
    words = _words(wanted, scenarios, merge_base, head)  # and not --budget and the like: they change no measurement
    # Those as given make the key: another runner has its workspace elsewhere.
    parts = _part_words(job, wanted, shards)
    here = replace(wanted, base=anchored(wanted.base, tree), head=anchored(wanted.head, tree))
    once = job.variable("GITHUB_RUN_ID") if wanted.command == "nightly" else ""  # a night is measured anew every night
    key = hashlib.sha256(canonical_json([head, merge_base, cells, list(words), once]).encode()).hexdigest()[:20]
    # The same for the same head, merge base, cells and shard, so that a later one replaces it; what was left is beside
    # the first try, of which a visit may be all that is worth keeping.
    part = f"shard-{wanted.shard.replace('/', '-of-')}" if wanted.shard else "run"
    artifact = f"perfgate-{part}-{'again-' if wanted.left else ''}{key}"
    judged_by = [*ALWAYS, *sorted({_folder(pattern) for pattern in wanted.scenarios})]
    return JobPlan(
        repository=job.repository, pull_request=pull_request, base_branch=branch, base=base, merge_base=merge_base,
        head=head, policy=policy, scenarios=scenarios, changed=_changed(git, merge_base, head, judged_by),
        artifact=artifact, command=wanted.command, runs=job.folder / "runs", shards=shards,
        words=parts if shards else (*_words(here, scenarios, merge_base, head), *wanted.more, *parts),
    )  # fmt: skip


def _part_words(job: GithubJob, wanted: Wanted, shards: Path | None) -> tuple[str, ...]:
    """Words of what is measured or judged of a plan; the plan is written down where they name it."""
    if (wanted.plan != "") != (wanted.shard != "" or shards is not None):
        raise UsageError("plan goes with shard, and with command: judge", remedy="Give it the outputs of the plan job.")
    if wanted.left and not wanted.shard:
        raise UsageError("left goes with shard", remedy="Give it what .github/actions/plan says is left of that shard.")
    if not wanted.plan:
        return ()
    plan = parse_shard_plan(wanted.plan, "plan")
    file, left_file = job.folder / "plan.json", job.folder / "left.json"
    write_atomically(file, wanted.plan)
    if shards is None:
        left = parse_shards_left(wanted.left, "left") if wanted.left else None
        plan.numbered(wanted.shard, left)  # there is such a shard, and something of it is left
        if wanted.left:
            write_atomically(left_file, wanted.left)
        return ("--shard", wanted.shard, "--plan", str(file), *(["--left", str(left_file)] if wanted.left else []))
    there = sorted(str(folder) for folder in shards.iterdir() if folder.is_dir()) if shards.is_dir() else []
    return (*(there or [str(shards)]), "--plan", str(file))


def touched(files: Iterable[str], scenarios: Iterable[str]) -> tuple[str, ...]:
    """Those of some changed files that a change is judged by."""
    judged_by = [*ALWAYS, *map(_folder, scenarios)]
    return tuple(
        sorted({file for file in files for folder in judged_by if folder == "." or f"{file}/".startswith(f"{folder}/")})
    )


def _aim(job: GithubJob, api: Api) -> tuple[int | None, str, str]:
    """Number of the pull request, the branch that it is judged by, and the commit of that where the event names it."""
    name, default = job.variable("GITHUB_EVENT_NAME"), job.event(Repository, "repository").default_branch
    if name == "pull_request":
        request = job.event(PullRequest, name)
        return request.number, _guarded(job, api, request.base.ref, default), ""
    if name == "merge_group":
        group = job.event(MergeGroup, name)
        return None, group.base_ref.removeprefix("refs/heads/"), group.base_sha
    pushed = PUSHED_REQUEST.fullmatch(job.variable("GITHUB_REF"))
    if name == "push" and pushed:
        request = _ask(job, api, PullRequest, f"pulls/{pushed[1]}", "pull-requests")
        return request.number, _guarded(job, api, request.base.ref, default), ""
    return None, default, ""


def _guarded(job: GithubJob, api: Api, aim: str, default: str) -> str:
    """The branch that a pull request aims at where GitHub protects it, else the default branch.

    A pull request can be aimed elsewhere after its check is green, and the check stays with the commit. So nobody is
    judged by a branch that anybody who may push can make for it.
    """
    if aim == default:
        return default
    return aim if _ask(job, api, _Branch, f"branches/{quote(aim, safe='/')}", "contents").protected else default


def _ask(job: GithubJob, api: Api, model: type[_Answer], what: str, permission: str) -> _Answer:
    try:
        return api.get(model, f"/repos/{job.repository}/{what}")
    except ApiError as error:
        raise UsageError(
            f"cannot ask which branch the pull request is judged by: {error}",
            remedy=f"Give the job permissions: {{{permission}: read}}.",
        ) from error


def _scenarios(policy: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    for pattern in patterns:
        if pattern.startswith(("/", "-")) or ".." in Path(pattern).parts:
            raise UsageError(f"scenarios: {pattern} leads out of the repository")
        try:
            file_pattern(pattern)
        except ValueError as error:
            raise UsageError(f"scenarios: {error}, found {pattern!r}") from error
    files = {file for pattern in patterns for file in policy.glob(pattern) if file.is_file()}
    return tuple(sorted(str(file.relative_to(policy)) for file in files))


def _words(wanted: Wanted, scenarios: Sequence[str], merge_base: str, head: str) -> tuple[str, ...]:
    sides = [("--head", wanted.head or (f"ref={head}",))]
    if wanted.against == "merge-base":
        sides.insert(0, ("--base", wanted.base or (f"ref={merge_base}",)))
    subjects = [argument for option, words in sides for word in words for argument in (option, word)]
    against = ["--against", "baseline"] if wanted.against == "baseline" else []
    return (*scenarios, *against, *subjects)


def _folder(pattern: str) -> str:
    """The part of a pattern before its first wildcard: a whole folder, since models are beside scenarios.

    A pattern that begins with a wildcard may find scenarios everywhere, so that is ``.``, where every file counts.
    """
    fixed, *wild = re.split(r"[*?\[]", pattern, maxsplit=1)
    folder = fixed.rpartition("/")[0] if wild or "/" in fixed else fixed
    return str(PurePosixPath(folder))


def _changed(git: Git, merge_base: str, head: str, judged_by: Sequence[str]) -> tuple[str, ...]:
    names = git.names("diff", "--name-only", "--no-renames", merge_base, head, "--", *judged_by)
    # They are printed and kept as JSON.
    return tuple(name.encode(errors="surrogateescape").decode(errors="replace") for name in names)
