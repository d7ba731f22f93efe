"""The one comment on a pull request that says how its newest commit fares, made by a job that may write.

That job runs on ``workflow_run``, holds none of the change's code, and takes the measuring job's artifact for hostile:
what it shows is rendered here, from an outcome that was read with suspicion.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from perfgate.errors import RecordError, UsageError
from perfgate.github import artifact
from perfgate.github.api import Api, ApiError, PullRequest, Repository, WorkflowRun
from perfgate.github.artifact import LIMIT_BYTES, read_verdict, unlinked
from perfgate.github.github_markdown import COMMENT_BYTES, render_within
from perfgate.github.policy import touched
from perfgate.github.workflow_job import PUSHED_REQUEST, GithubJob, JobPlan
from perfgate.judge.outcome import Outcome
from perfgate.machine.versioned_json import parse_model
from perfgate.report.markdown import escape
from perfgate.units import listed

AUTHOR = "github-actions[bot]"
"""Who a workflow's own token writes as."""
MARKER = "<!-- perfgate: one comment, kept up to date -->"
SHOWN = "; report.html in the run's artifact shows the evidence"
LISTED = 20
"""So many files are named; further ones are counted."""


class _File(BaseModel):
    filename: str
    previous_filename: str | None = None


class _User(BaseModel):
    login: str


class _Comment(BaseModel):
    id: int
    body: str | None = None
    user: _User | None = None

    def is_ours(self, author: str) -> bool:
        return self.user is not None and self.user.login == author and (self.body or "").startswith(MARKER)


def unheard(run: WorkflowRun, repository: str, *, pull_requests: bool) -> str:
    """Why nothing that a run uploaded is shown; empty where it is.

    A run that a fork's ``pull_request`` starts carries out the fork's own workflow, on hosted runners and under any
    name: its artifact would be the fork's own praise in our words.

    Args:
        run: The workflow run that ended.
        repository: Where the comment goes.
        pull_requests: Whether runs count that were started by ``pull_request``.
    """
    if run.origin != repository:
        return f"the run is one of {run.origin or 'a repository that is gone'}, not of {repository}"
    if run.event == "pull_request" and not pull_requests:
        return "the run was started by pull_request, and such runs count only with --pull-request-runs"
    return "" if run.event in ("push", "pull_request") else "the run judged no pull request"


def comment(
    job: GithubJob, api: Api, scenarios: Iterable[str], author: str = AUTHOR, *, pull_requests: bool = False
) -> str:
    """Write or rewrite the comment for the run that this job follows; returns what was done, in words.

    Args:
        job: This job.
        api: With a token that may write to pull requests.
        scenarios: Patterns of scenario files, to tell which files of the change it is judged by.
        author: Whose comment is looked for: a marker alone could be anybody's.
        pull_requests: Whether runs that were started by ``pull_request`` count too; those of forks never do.

    Raises:
        UsageError: The event is not a ``workflow_run``.
        RecordError: The artifact is not what it should be; nothing is written then.
        ApiError: GitHub refused.
    """
    run = job.event(WorkflowRun, "workflow_run")
    if job.event(Repository, "repository").full_name != job.repository:
        raise UsageError(f"the event is one of another repository than {job.repository}")
    if why := unheard(run, job.repository, pull_requests=pull_requests):
        return f"{why}: nothing to comment on"
    with tempfile.TemporaryDirectory() as scratch:
        outcome, claimed = _read_artifact(api, job.repository, run, Path(scratch) / "artifact.zip")
    number = _number(run, claimed)
    if number is None:
        return "the run names no pull request: nothing to comment on"
    page = f"/repos/{job.repository}/pulls/{number}"
    request = api.get(PullRequest, page)
    if request.state != "open":
        return f"pull request {number} is not open: nothing to comment on"
    if (at := request.head.sha) != run.head_sha:
        return f"pull request {number} is at {at[:12]}, the run was at {run.head_sha[:12]}: nothing to comment on"
    listed = api.pages(_File, f"{page}/files")
    # What is moved away is altered where it was.
    files = [name for file in listed for name in (file.filename, file.previous_filename) if name is not None]
    try:
        body = comment_body(run, job.page_of(run.id), outcome, touched(files, scenarios))
    except Exception as error:  # figures and names that fit the schema and that no renderer was made for
        raise RecordError(f"is a verdict that cannot be shown: {error!r}"[:300], where=artifact.VERDICT) from error
    return _put(api, f"/repos/{job.repository}/issues", number, body, author)


def comment_body(run: WorkflowRun, page: str, outcome: Outcome | None, changed: Iterable[str]) -> str:
    """The Markdown of the comment, within GitHub's limit; ``page`` is the address of the run's."""
    footer = f"Commit {run.head_sha[:12]}: [run and artifacts]({page}){'' if outcome is None else SHOWN}\n"
    note = policy_note(tuple(changed))
    if outcome is None:
        ended = escape(f"the run ended as {run.conclusion} without a verdict")
        parts = [f"**NOT MEASURED: {ended}. No data is never a pass.**", *([note] if note else [])]
        return "\n\n".join([MARKER, *parts, footer])
    room = COMMENT_BYTES - len(f"{MARKER}\n\n\n{footer}".encode())
    return f"{MARKER}\n\n{render_within(outcome, room, [note] if note else [])}\n{footer}"


def policy_note(changed: tuple[str, ...]) -> str:
    """What a change alters of all that it is judged by; empty where it alters nothing."""
    if not changed:
        return ""
    named = listed([escape(unlinked(name[:200])) for name in changed], LISTED)
    return (
        f"This change alters what changes are judged by: {named}. It was judged by the base branch's versions; "
        "its own count from its merge on, so review them."
    )


def _read_artifact(api: Api, repository: str, run: WorkflowRun, file: Path) -> tuple[Outcome | None, int | None]:
    """The outcome, and the pull request that the artifact claims to be of; ``None`` for what it does not have."""
    uploaded = artifact.of_run(api, repository, run.id, artifact.VERDICT)
    if uploaded is None:
        return None, None
    artifact.fetch(api, repository, uploaded, file, LIMIT_BYTES)
    verdict = artifact.read_member(file, "verdict.json", LIMIT_BYTES)
    plan = artifact.read_member(file, "job.json", LIMIT_BYTES)
    claimed = parse_model(JobPlan, plan, f"{artifact.VERDICT}: job.json").pull_request if plan is not None else None
    return (None if verdict is None else read_verdict(verdict, artifact.VERDICT)), claimed


def _number(run: WorkflowRun, claimed: int | None) -> int | None:
    """The pull request's number by the branch it was pushed to, else as claimed; both are still to be checked."""
    pushed = PUSHED_REQUEST.fullmatch(run.head_branch or "")
    number = int(pushed[1]) if pushed else claimed
    return number if number is not None and 0 < number < 10**9 else None


def _put(api: Api, issues: str, number: int, body: str, author: str) -> str:
    """Rewrite our comment, or write the first; others of ours, left by jobs that ran at once, go."""
    page = f"{issues}/{number}/comments"
    ours = [item for item in api.pages(_Comment, page) if item.is_ours(author)]
    if not ours:
        api.send("POST", page, {"body": body})
        return f"pull request {number}: comment written"
    first, *doubles = sorted(ours, key=lambda item: item.id)
    for double in doubles:
        api.send("DELETE", f"{issues}/comments/{double.id}")
    if first.body == body:
        return f"pull request {number}: the comment says so already"
    try:
        api.send("PATCH", f"{issues}/comments/{first.id}", {"body": body})
    except ApiError as error:
        if error.status != 404:  # noqa: PLR2004 (somebody deleted it meanwhile)
            raise
        api.send("POST", page, {"body": body})
    return f"pull request {number}: comment rewritten"
