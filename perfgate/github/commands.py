"""The steps of a GitHub job as commands: a workflow calls them one after the other and decides nothing itself.

Slow imports are in the bodies of commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.outlet import command
from perfgate.cli.output_options import lines
from perfgate.errors import ExitStatus, PerfgateError, RecordError, ScenarioError

if TYPE_CHECKING:
    from perfgate.github.github_markdown import Level


SCENARIOS_OPTION = click.option(
    "--scenarios", callback=lines, default="scenarios/*.yaml", envvar="PERFGATE_SCENARIOS", show_default=True,
    help="Patterns of scenario files from the repository's root, one a line.",
)  # fmt: skip


def ending_jobs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``perfgate clean`` its ``--job``."""

    @click.option("--job", is_flag=True, help="First end this GitHub job's runs that have an engine now.")
    @functools.wraps(command)
    def with_job(*, job: bool, **rest: Any) -> Any:
        from perfgate.github.workflow_job import GithubJob
        from perfgate.machine.orphans import end_runs

        # Every process of a job has these in its environment and no other has: a runner takes one job at a time.
        marks = ("RUNNER_NAME", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT") if job else ()
        variables = {name: GithubJob.here().variable(name) for name in marks}
        return command(ended=end_runs(variables) if job else (), **rest)

    return with_job


@click.group()
def github() -> None:
    """The steps of a GitHub job: prepare, measure, report, enforce; and the comment on the pull request."""


@github.command()
@SCENARIOS_OPTION
@click.option("--command", type=click.Choice(["run", "nightly", "judge"]), default="run", envvar="PERFGATE_COMMAND",
              show_default=True, help="What of perfgate measures.")  # fmt: skip
@click.option("--against", type=click.Choice(["merge-base", "baseline"]), default="merge-base",
              envvar="PERFGATE_AGAINST", show_default=True)  # fmt: skip
@click.option("--base", callback=lines, default="", envvar="PERFGATE_BASE",
              help="Words of the base's subject, one a line; by default the merge base's build.")  # fmt: skip
@click.option("--head", callback=lines, default="", envvar="PERFGATE_HEAD",
              help="Words of the head's subject, one a line; by default the head's build.")  # fmt: skip
@click.option("--shard", default="", envvar="PERFGATE_SHARD", metavar="K/N",
              help="Measure this shard of the plan alone.")  # fmt: skip
@click.option("--plan", default="", envvar="PERFGATE_PLAN", metavar="JSON", help="What perfgate github plan gave.")
@click.option("--shards", default="", envvar="PERFGATE_SHARDS", metavar="FOLDER", help="The shards to judge.")
@click.option("--left", default="", envvar="PERFGATE_LEFT", metavar="JSON",
              help="What left gave: only this of the shard.")  # fmt: skip
@click.option("--budget", default="", envvar="PERFGATE_BUDGET", metavar="MINUTES", help="See perfgate run.")
@click.option("--resume/--no-resume", default=False, envvar="PERFGATE_RESUME", show_default=True,
              help="Go on with what an earlier attempt of this workflow run measured of the same.")  # fmt: skip
@click.pass_context
def prepare(ctx: click.Context, /, budget: str, resume: bool, **wanted: Any) -> None:  # noqa: FBT001 (a flag)
    """Find out what is compared by which scenarios: those of the base branch; and fetch what was measured of it."""
    from perfgate.github.api import ApiError
    from perfgate.github.github_markdown import ANNOTATIONS
    from perfgate.github.job_steps import fetch_earlier
    from perfgate.github.policy import Wanted, make_plan
    from perfgate.github.workflow_job import GithubJob

    job = GithubJob.here()
    try:
        plan = make_plan(job, job.api, Wanted(**wanted, more=("--budget", budget) if budget else ()), Path.cwd())
    except ScenarioError as error:
        for problem in error.problems[:ANNOTATIONS]:
            text = f"{problem.field}: {problem.text}" if problem.field else problem.text
            _annotate("error", text, problem.file.removeprefix(f"{job.folder / 'policy'}/"), problem.line)
        ctx.exit(error.exit_status)
    if resume and plan.may_be_resumed:
        try:
            fetch_earlier(job, plan)
        except (ApiError, RecordError) as error:
            _annotate("warning", f"what an earlier attempt measured cannot be had, so measuring begins anew: {error}")
    job.write_plan(plan)
    job.set_outputs({"artifact": plan.artifact, "runs": str(plan.runs), "whole": "true" if plan.whole else ""})
    click.echo(f"{plan.head[:12]} against {plan.merge_base[:12]}, by {len(plan.scenarios)} scenarios of "
               f"{plan.base_branch} ({plan.base[:12]})")  # fmt: skip
    if plan.run_folder:
        click.echo(f"goes on with {plan.run_folder.name}")


@github.command()
@click.option("--shards", type=click.IntRange(1, 1000), required=True, envvar="PERFGATE_SHARDS", metavar="N")
def plan(shards: int) -> None:
    """Divide the scenarios of the base branch, as prepared, into N shards at most, and give them as output matrix."""
    from perfgate.fleet.commands import divided
    from perfgate.github.workflow_job import GithubJob

    job = GithubJob.here()
    prepared = job.prepared()
    os.chdir(prepared.policy)
    attempt = int(job.variable("GITHUB_RUN_ATTEMPT"))
    matrix = divided([Path(file) for file in prepared.scenarios], shards, None, prepared.runs, attempt)
    job.set_outputs({"matrix": matrix.model_dump_json()})
    for entry in matrix.include:
        click.echo(f"{entry.shard} on {', '.join(entry.runs_on)}: {len(entry.cells)} cells, {entry.minutes or '?'} min")


@github.command()
@click.option("--plan", "matrix", required=True, envvar="PERFGATE_PLAN", metavar="JSON", help="What plan gave.")
@click.option("--shard", default="", envvar="PERFGATE_SHARD", metavar="K/N",
              help="Whether this one is; else which are.")  # fmt: skip
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def left(matrix: str, shard: str, folder: Path) -> None:
    """Give as output matrix what is left to measure of a plan, by the shards in FOLDER; empty where nothing is."""
    from perfgate.fleet.joined_nights import shards_left
    from perfgate.github.workflow_job import GithubJob
    from perfgate.record.shards import parse_shard_plan

    plan = parse_shard_plan(matrix, "--plan")
    asked = plan.include[plan.numbered(shard).number - 1].shard if shard else None
    left = [entry for entry in shards_left(plan, sorted(folder.glob("*"))).include if asked in (None, entry.shard)]
    entries = [entry.model_dump(mode="json") for entry in left]
    GithubJob.here().set_outputs({"matrix": json.dumps({"include": entries}) if entries else ""})
    click.echo(f"left: {', '.join(entry.shard for entry in left) or 'nothing'}")


@github.command()
@click.pass_context
def measure(ctx: click.Context) -> None:
    """Measure as prepared. Ends with 0 unless it was interrupted: enforce is what judges, after the uploads."""
    from perfgate.capture.compile_caches import VARIABLE
    from perfgate.github.workflow_job import GithubJob
    from perfgate.project.build import CACHE

    job = GithubJob.here()
    plan = job.prepared()
    # What an earlier attempt left is held against the words of this plan: trials are taken from it, and nothing else.
    begun = plan.run_folder if plan.command != "judge" else None
    words = [*plan.words, *(["--resume", str(begun)] if begun else ["--runs", str(plan.runs)])]
    os.chdir(plan.policy)  # its perfgate.toml counts, not that of the change
    for variable, folder in ((CACHE, "builds"), (VARIABLE, "caches")):
        if plan.command == "nightly" or variable not in os.environ:
            os.environ[variable] = str(job.folder / folder)  # an earlier job can have changed what is in any other
    token = secrets.token_hex(32)  # what an engine says is printed, and must not be obeyed
    command(f"::stop-commands::{token}")
    root, status = ctx.find_root(), int(ExitStatus.PASS)
    try:  # in this process, which is the one that GitHub interrupts
        root.command.main([plan.command, *words, "--format", "text"], prog_name="perfgate", obj=root.obj)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else ExitStatus.INTERNAL_ERROR
    job.write_status(status)
    command(f"::{token}::")
    click.echo(f"perfgate {plan.command} ended with {status}", err=True)
    if status == ExitStatus.INTERRUPTED:
        ctx.exit(status)


@github.command()
def report() -> None:
    """Show what was measured: summary, annotations, outputs, and the small artifact that a comment is made from."""
    from perfgate.github.comment import policy_note
    from perfgate.github.github_markdown import SUMMARY_BYTES, annotate, render_within
    from perfgate.github.job_steps import judged, promotable, write_issue, write_page, write_small_artifact
    from perfgate.github.workflow_job import GithubJob

    job = GithubJob.here()
    plan, status = job.read_plan(), job.status
    folder = plan.run_folder if plan else None
    notes = [note] if plan and (note := policy_note(plan.changed)) else []
    outcome = None
    try:
        outcome = judged(folder) if folder else None
    except PerfgateError as error:
        click.echo(f"perfgate: {error}", err=True)
    if outcome is None:
        text = f"NOT MEASURED: perfgate ended with {int(status)} before a run began; its messages are in the log."
        _annotate("error", text)
        job.add_summary("\n\n".join([f"**{text}**", *notes]) + "\n")
    else:
        for annotation in annotate(outcome):
            command(str(annotation))
        if status == ExitStatus.INTERRUPTED:
            notes.insert(0, "The job was stopped or out of budget. What was measured is kept: re-run it to go on.")
        job.add_summary(render_within(outcome, SUMMARY_BYTES, notes))
    verdict = outcome.verdict if outcome else "not-measured"
    job.set_outputs({"verdict": verdict, "exit_status": int(status), "run_folder": str(folder or "")})
    job.set_outputs(promotable(plan))
    write_small_artifact(job, plan, outcome)
    if folder and outcome:
        write_page(folder, outcome)
        if plan is not None and plan.shards is not None:
            job.set_outputs({"issue": str(write_issue(job, outcome))})


@github.command()
@click.option("--inconclusive", type=click.Choice(["warn", "fail"]), default="warn", envvar="PERFGATE_INCONCLUSIVE",
              show_default=True, help="What a verdict that decides nothing does to the check.")  # fmt: skip
@click.pass_context
def enforce(ctx: click.Context, inconclusive: str) -> None:
    """End with the run's exit status; the last step, after everything is uploaded."""
    from perfgate.github.workflow_job import GithubJob

    status = GithubJob.here().status
    if status == ExitStatus.INCONCLUSIVE and inconclusive == "warn":
        _annotate("warning", "nothing was decided: this does not pass, and blocks nothing")
        return
    ctx.exit(status)


@github.command()
@click.argument("baselines", type=click.Path(file_okay=False, path_type=Path))
@SCENARIOS_OPTION
@click.option("--draw", type=click.Path(file_okay=False, path_type=Path),
              help="Folder of baselines whose nights are drawn beside these, and held against nothing.")  # fmt: skip
def drift(baselines: Path, scenarios: tuple[str, ...], draw: Path | None) -> None:
    """Hold the nights in BASELINES against the budgets of the scenarios; show them in the summary.

    Ends with 10 where a budget is overdrawn. Too few nights, and scenarios without a budget, fail nothing here.
    """
    from perfgate.baseline.drift_page import drift_document, finding, measured_builds
    from perfgate.baseline.night_series import held_to_budgets
    from perfgate.github.github_markdown import SUMMARY_BYTES
    from perfgate.github.workflow_job import GithubJob
    from perfgate.report.markdown import to_markdown

    files = [file for pattern in scenarios for file in sorted(Path().glob(pattern))]
    budgeted = held_to_budgets(files, baselines)
    drawn = held_to_budgets(files, draw, only_drawn=True).drifts if draw else ()
    for folder, drifts in ((baselines, budgeted.drifts), (draw, drawn)):
        if drifts:
            pages = to_markdown(drift_document(drifts), SUMMARY_BYTES // 2 - 1000)
            GithubJob.here().add_summary(f"## Nights in `{folder}`\n\n{pages}\n")
    for cell, file in budgeted.without_nights:
        click.echo(f"{baselines}: no nights of {cell} as {file} has it yet", err=True)
    for lineage, lost in budgeted.over:
        said = f"{lineage.cell.name}: {lost.metric} lost more than {lost.budget}: {finding(lost)}"
        _annotate("error", "\n".join([said, *measured_builds(lost)]))
    if budgeted.over:
        click.get_current_context().exit(ExitStatus.REGRESSED)


@github.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--title", default="Promote tonight's baselines", show_default=True)
def propose(paths: tuple[str, ...], title: str) -> None:
    """Propose what changed below PATHS of this checkout as a pull request; a later proposal replaces it."""
    from perfgate.github.job_steps import changed_files, moved
    from perfgate.github.job_steps import propose as make_proposal
    from perfgate.github.workflow_job import GithubJob

    job = GithubJob.here()
    body = (
        f"Measured by [this run]({job.page_of(job.variable('GITHUB_RUN_ID'))}), whose artifacts "
        "hold the report and everything that was measured. `perfgate baseline log` says why each entry is there."
        f"{moved(changed_files(Path.cwd(), paths))}"
    )
    click.echo(make_proposal(job, Path.cwd(), paths, title, body))


@github.command()
@SCENARIOS_OPTION
@click.option("--author", default="github-actions[bot]", envvar="PERFGATE_AUTHOR", show_default=True,
              help="Who the token writes as.")  # fmt: skip
@click.option("--pull-request-runs/--no-pull-request-runs", default=False, envvar="PERFGATE_PULL_REQUEST_RUNS",
              show_default=True, help="Also follow runs started by pull_request; never a fork's.")  # fmt: skip
def comment(scenarios: tuple[str, ...], author: str, pull_request_runs: bool) -> None:  # noqa: FBT001 (a flag)
    """Write or rewrite the one comment on the pull request; on workflow_run, with a token that may write.

    Where GitHub refuses, that is a warning: a comment is not a verdict. An artifact that is not what it should be is an
    error, and nothing is written.
    """
    from perfgate.github.api import ApiError
    from perfgate.github.comment import comment as write_comment
    from perfgate.github.workflow_job import GithubJob

    job = GithubJob.here()
    try:
        click.echo(write_comment(job, job.api, scenarios, author, pull_requests=pull_request_runs))
    except ApiError as error:
        _annotate("warning", f"no comment was written: {error}")


def _annotate(level: Level, text: str, file: str = "", line: int = 0) -> None:
    from perfgate.github.github_markdown import Annotation

    command(str(Annotation(level, "perfgate", text, file, line)))
