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
from typing import Any, Literal
from urllib.parse import quote

from perfgate.errors import UsageError
from perfgate.github.api import Api, ApiError
from perfgate.github.workflow_job import PUSHED_REQUEST, Command, GithubJob, JobPlan, of_event
from perfgate.machine.atomic_files import canonical_json
from perfgate.project.git import Git
from perfgate.project.subjects import anchored
from perfgate.scenario.declaration import load
from perfgate.scenario.fields import file_pattern
from perfgate.scenario.plan import resolve_cells

Against = Literal["merge-base", "baseline"]
ALWAYS = ("perfgate.toml", "baselines")
"""What decides beside the scenarios and what is in their folders."""
_OF_THE_TREE = re.compile(r"ref=(\.|.*\.\.\.|(.*[^\w/-])?(HEAD|@)([^\w/-].*)?)")
"""Words of a ref that depends on what is checked out: ``.``, ``main...``, ``HEAD~1``."""


@dataclass(frozen=True)
class Wanted:
    """What a workflow asks for.

    Args:
        scenarios: Patterns of scenario files, from the root of the repository.
        command: What of perfgate measures.
        against: What the head is compared with.
        base: Words of the base's subject, paths from the checkout; the merge base's build where there are none.
        head: Words of the head's subject, paths from the checkout; the head's build where there are none.
        more: Further words of ``perfgate run``.
    """

    scenarios: tuple[str, ...]
    command: Command = "run"
    against: Against = "merge-base"
    base: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


def make_plan(job: GithubJob, api: Api, wanted: Wanted, tree: Path) -> JobPlan:
    """Find out what is compared with what and by which scenarios; the base branch gets a working tree of its own.

    Args:
        job: This job.
        api: Asked which branch a pushed pull request aims at.
        wanted: What the workflow asks for.
        tree: The checkout, whole history and all.

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
    words = _words(wanted, scenarios, merge_base, head)  # and not --budget and the like: they change no measurement
    # Those as given make the key: another runner has its workspace elsewhere.
    here = replace(wanted, base=anchored(wanted.base, tree), head=anchored(wanted.head, tree))
    once = job.variable("GITHUB_RUN_ID") if wanted.command == "nightly" else ""  # a night is measured anew every night
    key = hashlib.sha256(canonical_json([head, merge_base, cells, list(words), once]).encode()).hexdigest()[:20]
    judged_by = [*ALWAYS, *sorted({_folder(pattern) for pattern in wanted.scenarios})]
    return JobPlan(
        repository=job.repository, pull_request=pull_request, base_branch=branch, base=base, merge_base=merge_base,
        head=head, policy=policy, scenarios=scenarios, changed=_changed(git, merge_base, head, judged_by),
        artifact=f"perfgate-run-{key}", command=wanted.command, runs=job.folder / "runs",
        words=(*_words(here, scenarios, merge_base, head), *wanted.more),
    )  # fmt: skip


def touched(files: Iterable[str], scenarios: Iterable[str]) -> tuple[str, ...]:
    """Those of some changed files that a change is judged by."""
    judged_by = [*ALWAYS, *map(_folder, scenarios)]
    return tuple(
        sorted({file for file in files for one in judged_by if one == "." or f"{file}/".startswith(f"{one}/")})
    )


def _aim(job: GithubJob, api: Api) -> tuple[int | None, str, str]:
    """Number of the pull request, the branch that it is judged by, and the commit of that where the event names it."""
    event, name = job.event, job.variable("GITHUB_EVENT_NAME")
    default = str(_at(event, "repository", "default_branch") or "main")
    if name == "pull_request":
        with of_event(name):
            number = int(event["number"])
        return number, _guarded(job, api, _at(event, "pull_request", "base", "ref"), default), ""
    if name == "merge_group":
        with of_event(name):
            group = event["merge_group"]
            return None, str(group["base_ref"]).removeprefix("refs/heads/"), str(group["base_sha"])
    pushed = PUSHED_REQUEST.fullmatch(job.variable("GITHUB_REF"))
    if name == "push" and pushed:
        number = int(pushed[1])
        aim = _at(_ask(job, api, f"pulls/{number}", "pull-requests"), "base", "ref")
        return number, _guarded(job, api, aim, default), ""
    return None, default, ""


def _guarded(job: GithubJob, api: Api, aim: Any, default: str) -> str:
    """The branch that a pull request aims at where GitHub protects it, else the default branch.

    A pull request can be aimed elsewhere after its check is green, and the check stays with the commit. So nobody is
    judged by a branch that anybody who may push can make for it.
    """
    if not aim or aim == default:
        return default
    found = _ask(job, api, f"branches/{quote(str(aim), safe='/')}", "contents")
    return str(aim) if _at(found, "protected") is True else default


def _ask(job: GithubJob, api: Api, what: str, permission: str) -> Any:
    try:
        return api.get(f"/repos/{job.repository}/{what}")
    except ApiError as error:
        raise UsageError(
            f"cannot ask which branch the pull request is judged by: {error}",
            remedy=f"Give the job permissions: {{{permission}: read}}.",
        ) from error


def _at(content: Any, *path: str) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _scenarios(policy: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    for pattern in patterns:
        if pattern.startswith(("/", "-")) or ".." in Path(pattern).parts:
            raise UsageError(f"scenarios: {pattern} leads out of the repository")
        try:
            file_pattern(pattern)
        except ValueError as error:
            raise UsageError(f"scenarios: {error}, found {pattern!r}") from error
    found = {file for pattern in patterns for file in policy.glob(pattern) if file.is_file()}
    return tuple(sorted(str(file.relative_to(policy)) for file in found))


def _words(wanted: Wanted, scenarios: Sequence[str], merge_base: str, head: str) -> tuple[str, ...]:
    sides = [("--head", wanted.head or (f"ref={head}",))]
    if wanted.against == "merge-base":
        sides.insert(0, ("--base", wanted.base or (f"ref={merge_base}",)))
    subjects = [word for option, words in sides for one in words for word in (option, one)]
    against = ["--against", "baseline"] if wanted.against == "baseline" else []
    return (*scenarios, *against, *subjects)


def _folder(pattern: str) -> str:
    """The part of a pattern before its first wildcard: a whole folder, since models lie beside scenarios.

    A pattern that begins with a wildcard may find scenarios everywhere, so that is ``.``, where every file counts.
    """
    fixed, *wild = re.split(r"[*?\[]", pattern, maxsplit=1)
    folder = fixed.rpartition("/")[0] if wild or "/" in fixed else fixed
    return str(PurePosixPath(folder))


def _changed(git: Git, merge_base: str, head: str, judged_by: Sequence[str]) -> tuple[str, ...]:
    named = git.run("diff", "--name-only", "-z", "--no-renames", merge_base, head, "--", *judged_by)
    shown = named.encode(errors="surrogateescape").decode(errors="replace")  # they are printed and kept as JSON
    return tuple(name for name in shown.split("\0") if name)
