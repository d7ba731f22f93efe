"""What the steps of a job do, apart from their options and what they print: :mod:`perfgate.github.commands`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfgate.baseline.baseline_page import diff_document, log_document
from perfgate.baseline.store import is_baseline, parse_as_of, read
from perfgate.errors import UsageError
from perfgate.fleet.joined_nights import nights_joined
from perfgate.fleet.nightly import MANIFEST, candidate, judge_night, night_of_the_head
from perfgate.gate import judge_folder
from perfgate.github import artifact
from perfgate.github.api import Api, ApiError, PullRequest
from perfgate.github.artifact import read_verdict
from perfgate.github.github_markdown import SUMMARY_BYTES, render_within
from perfgate.github.workflow_job import GithubJob, JobPlan
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.versioned_json import write_model
from perfgate.project.git import Git
from perfgate.report.html import run_html
from perfgate.report.run_page import MeasuredRun
from perfgate.report.text import to_text

PAGE = "report.html"  # in the run folder
BODY_CHARACTERS = 60_000  # of a pull request's body that tell what moved; GitHub takes 65,536 in all


def fetch_earlier(job: GithubJob, plan: JobPlan) -> None:
    """Unpack the run folder of an earlier attempt, where there is one.

    Raises:
        ApiError: GitHub refused.
        RecordError: It is not what it should be.
    """
    file = job.folder / "earlier.zip"
    try:
        uploaded = artifact.of_earlier_attempt(job.api, job, plan.artifact, job.listed_at(plan.head))
        if uploaded is not None:
            artifact.fetch(job.api, plan.repository, uploaded, file, artifact.RUN_BYTES)
            artifact.unpack(file, plan.runs)
    finally:
        file.unlink(missing_ok=True)


def judged(folder: Path) -> Outcome:
    """The outcome of a run or a night.

    Raises:
        PerfgateError: It cannot be judged.
    """
    return judge_night(folder) if (folder / MANIFEST).exists() else judge_folder(folder)


def promotable(plan: JobPlan | None) -> dict[str, str]:
    """The runs of a night that may be promoted, as they are in the run folder's artifact; empty where none may.

    Of a night of several machines they are a line each, from the folder of their shards.

    ``candidate`` is that of the reference, one more visit of the baseline; ``night`` that of the head beside the
    anchor, from which its drift is read.
    """
    folder = plan.run_folder if plan else None
    if plan is None or folder is None or not (folder / MANIFEST).exists():
        return {"candidate": "", "night": ""}
    if plan.shards is None:
        nights, root = [folder], plan.runs
    else:
        nights, root = nights_joined(folder, sorted(plan.shards.iterdir())), plan.shards
    outputs = {"candidate": map(candidate, nights), "night": map(night_of_the_head, nights)}
    return {name: "\n".join(str(run.relative_to(root)) for run in runs if run) for name, runs in outputs.items()}


def write_small_artifact(job: GithubJob, plan: JobPlan | None, outcome: Outcome | None) -> None:
    """What a comment is made from."""
    folder = job.folder / "verdict"
    folder.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        write_model(folder / "job.json", plan)
    if outcome is not None:
        write_atomically(folder / "verdict.json", verdict_json(outcome))


def write_issue(job: GithubJob, outcome: Outcome) -> Path:
    """The text of an issue about an outcome, whose words may be an artifact's: no markup, no link, no mention."""
    file = job.folder / "issue.md"
    shown = read_verdict(verdict_json(outcome).encode(), "verdict.json")
    write_atomically(file, render_within(shown, BODY_CHARACTERS))
    return file


def write_page(folder: Path, outcome: Outcome) -> None:
    """The page of a run beside its records, which are uploaded with it.

    Raises:
        PerfgateError: A record cannot be trusted.
        OSError: It cannot be written.
    """
    write_atomically(folder / PAGE, run_html(MeasuredRun.of(outcome, folder)))


def publish(outcome: Outcome, run_folder: Path | str) -> None:
    """Fill the summary and the outputs of the job's step, where there is a job: what ``--format github`` does too."""
    job = GithubJob.here()
    job.add_summary(render_within(outcome, SUMMARY_BYTES))
    job.set_outputs({"verdict": outcome.verdict, "exit_status": outcome.exit_status, "run_folder": str(run_folder)})


def moved(names: Sequence[str]) -> str:
    """What was promoted and how far each metric moved, baseline by baseline, as blocks of Markdown."""
    text = ""
    for file in filter(is_baseline, map(Path, names)):
        before, now = parse_as_of(file, "HEAD"), read(file).baseline
        report = f"{file}\n{to_text(diff_document(before, now) if before else log_document(now))}"
        text += f"\n\n{textwrap.indent(report, ' ' * 4)}"  # no text can end a block that is indented
    if len(text) > BODY_CHARACTERS:
        text = f"{text[:BODY_CHARACTERS].rpartition(chr(10))[0]}\n\nThe rest did not fit: see `perfgate baseline diff`."
    return text


BRANCH = "perfgate/baselines"  # of the pull request; it holds one proposal alone, so an older one is replaced


class _Object(BaseModel):
    sha: str


class _Commit(BaseModel):
    tree: _Object


def propose(job: GithubJob, tree: Path, paths: Sequence[str], title: str, body: str) -> str:
    """Put what changed below some paths into a pull request, by the API: no job needs git's credentials on its disk.

    Returns:
        What was done, in words.

    Raises:
        UsageError: ``tree`` is not a checkout, or a file that changed is not text.
        ApiError: GitHub refused.
    """
    changed = changed_files(tree, paths)
    if not changed:
        return f"nothing changed in {', '.join(paths)}: nothing to propose"
    api, root, base = job.api, f"/repos/{job.repository}", job.variable("GITHUB_REF_NAME")
    head = Git(tree).run("rev-parse", "HEAD").strip()
    entries = [_entry(api, root, tree, name) for name in changed]
    base_tree = api.get(_Commit, f"{root}/git/commits/{head}").tree.sha
    made = api.make(_Object, f"{root}/git/trees", {"base_tree": base_tree, "tree": entries}).sha
    content = {"message": title, "tree": made, "parents": [head]}
    commit = api.make(_Object, f"{root}/git/commits", content).sha
    try:
        api.send("GET", f"{root}/git/ref/heads/{BRANCH}")
    except ApiError as error:
        if error.status != 404:  # noqa: PLR2004 (not found)
            raise
        api.send("POST", f"{root}/git/refs", {"ref": f"refs/heads/{BRANCH}", "sha": commit})
    else:
        api.send("PATCH", f"{root}/git/refs/heads/{BRANCH}", {"sha": commit, "force": True})
    owner, page, names = job.repository.partition("/")[0], f"{root}/pulls", ", ".join(changed)
    text = {"title": title, "body": body}
    for request in api.pages(PullRequest, page, head=f"{owner}:{BRANCH}", state="open", base=base):
        api.send("PATCH", f"{page}/{request.number}", text)
        return f"pull request {request.number} now proposes {names}"
    request = api.make(PullRequest, page, {**text, "head": BRANCH, "base": base})
    return f"pull request {request.number} proposes {names}"


def changed_files(tree: Path, paths: Sequence[str]) -> list[str]:
    """Files below the paths that are not as in HEAD, new and deleted ones too, sorted.

    Raises:
        UsageError: ``tree`` is not a checkout.
    """
    git = Git(tree)
    changed = git.names("diff", "--name-only", "--no-renames", "HEAD", "--", *paths)
    return sorted({*changed, *git.names("ls-files", "--others", "--exclude-standard", "--", *paths)})


def _entry(api: Api, root: str, tree: Path, name: str) -> dict[str, Any]:
    """A file as the tree has it; without a digest it is deleted."""
    file = tree / name
    entry: dict[str, Any] = {"path": name, "mode": "100644", "type": "blob", "sha": None}
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise UsageError("not a plain file", where=name)
    if file.exists():
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError("not text", where=name) from error
        entry["sha"] = api.make(_Object, f"{root}/git/blobs", {"content": text, "encoding": "utf-8"}).sha
    return entry
