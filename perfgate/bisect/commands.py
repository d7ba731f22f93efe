"""``perfgate bisect``: which commit lost it.

Slow imports are in the bodies, as in :mod:`perfgate.cli.results`.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.measuring import (
    BASE_OPTION,
    BUDGET_OPTION,
    GPUS_OPTION,
    QUIET_OPTION,
    Builds,
    measuring,
    resume_option,
)
from perfgate.cli.output_options import RUNS_OPTION, check_outputs, format_option, show
from perfgate.errors import InterruptedRunError, NotMeasuredError, PerfgateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfgate.bisect.lost_gate import Said
    from perfgate.capture.job import Collector
    from perfgate.scenario.subject import Subject

ABORT = 128  # git bisect run stops at this status; from 1 to 127 it would take the commit for a bad one
GOOD, BAD, SKIP = 0, 1, 125  # what `git bisect run` is told of a commit


class _Bisect(click.Command):
    """With ``--step``, whatever goes wrong stops ``git bisect run`` and never blames a commit."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        step = "--step" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not step:
                raise
            error.show()
            raise click.exceptions.Exit(ABORT) from error

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params["step"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except (PerfgateError, OSError) as error:
            click.echo(f"perfgate: {error}", err=True)
        except Exception:  # noqa: BLE001 (shown whole; the status must not be 1)
            traceback.print_exc()
        raise click.exceptions.Exit(ABORT)


def _rate(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    from perfgate.units import parse_percent

    try:
        return None if text is None else parse_percent(text)
    except ValueError as error:
        raise UsageError(f"{parameter.opts[0]} {text}: {error}") from error


@click.command(cls=_Bisect)
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--good", metavar="REF", help="A commit before the loss, an ancestor of the bad one.")
@click.option("--bad", metavar="REF", help="A commit that has it; HEAD if not given.")
@BASE_OPTION
@click.option("--cell", default="", help="Search for what this cell lost: its name, or digits of its identity.")
@click.option("--metric", default="", help="Search for what this gated metric lost; else whichever regressed.")
@click.option("--error", default="5%", show_default=True, callback=_rate,
              help="Probability of an answer without the commit, over the whole search.")  # fmt: skip
@click.option("--max-pairs", "pairs", type=click.IntRange(1), default=400, show_default=True,
              help="Begin no step after so many pairs.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**62), help="Seed of the order within pairs; drawn if not given.")
@resume_option("BISECT", "this search instead (a folder, its name, or latest); one that is over is shown again.")
@click.option("--step", is_flag=True, help="Compare HEAD with --good once, for git bisect run: ends with 0 where it is "
              "as fast, 1 where it is slower, 125 where nobody can tell, 128 where something went wrong.")  # fmt: skip
@click.option("--loss", callback=_rate, metavar="PERCENT",
              help="With --step only: what was lost. A commit is bad above a third of it, good below two.")  # fmt: skip
@RUNS_OPTION
@BUDGET_OPTION
@GPUS_OPTION
@QUIET_OPTION
@format_option("bisect")
@click.option("--output", "outputs", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
              help="Also write the report to this file (.txt, .md, .json); may be given several times.")  # fmt: skip
@click.pass_obj
def bisect(  # noqa: PLR0913 (options by name)
    collector: Collector | None, *, scenario: Path | None, good: str | None, bad: str | None,
    base_words: tuple[str, ...], cell: str, metric: str, error: float, pairs: int, seed: int | None,
    folder: Path | None, step: bool, loss: float | None, runs: Path, budget_s: float, gpus: str, form: str,
    outputs: tuple[Path, ...],
) -> None:  # fmt: skip
    """Find the commit that made a metric worse, between a good commit and a bad one.

    Both are compared first. Then commits are built and measured beside the good one, each chosen by what it is
    expected to tell after everything measured so far (docs/bisect.md). Commits that do not build are skipped. Merges
    count as one commit each.

    Exit status: 0 where one commit was found, 20 where several are left or nothing is decided, 21 where the bad commit
    was not worse, 22 where it could not be measured.

    \b
    perfgate bisect --good v1.2 --bad main scenarios/llama-8b-decode.yaml
    perfgate bisect --resume latest
    git bisect run perfgate bisect --step --good v1.2 ~/scenarios/llama-8b-decode.yaml
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate.bisect.bisect_report import report_of
    from perfgate.bisect.bisection import MANIFEST, Bisection, read_state
    from perfgate.bisect.searching import begin, search
    from perfgate.machine.versioned_json import read_model
    from perfgate.report.run_folders import find_run

    means: dict[str, Any] = {"collector": collector, "budget_s": budget_s, "gpus": gpus}
    check_outputs(outputs, "bisect")
    if step:
        if folder is not None or bad is not None or scenario is None or good is None:
            raise UsageError("--step compares HEAD with --good by a scenario: name these two, not --bad or --resume")
        with measuring() as progress:
            said = one_step(_builds(base_words, runs, progress), (scenario, cell, metric, loss), good,
                            {**means, "runs": runs, "seed": seed, "progress": progress})  # fmt: skip
        click.echo(f"perfgate: {said}", err=True)
        click.get_current_context().exit({"good": GOOD, "bad": BAD, "unknown": SKIP}[said])
    if (folder is None) != (scenario is not None and good is not None):
        raise UsageError("expected a scenario and --good, or --resume BISECT alone")
    if folder is not None and (good or bad or base_words or cell or metric or seed is not None):
        raise UsageError("--resume goes on with a search as it began: it takes --runs, --budget and --gpus alone")
    if loss is not None:
        raise UsageError("--loss goes with --step: a search estimates it")
    stopped: InterruptedRunError | None = None
    with measuring() as progress:
        if scenario is not None and good is not None:
            place = begin(scenario, (good, bad or "HEAD"), runs, progress, words=base_words, cell=cell, metric=metric,
                          error=error, pairs=pairs, seed=seed)  # fmt: skip
        else:
            place = find_run(Path(str(folder)), runs, MANIFEST)
        click.echo(f"bisect folder: {place}", err=True)
        builds = _builds(read_model(Bisection, place / MANIFEST).words, runs, progress)
        try:
            search(place, builds, progress=progress, **means)
        except InterruptedRunError as interruption:  # what was measured is reported all the same
            stopped = interruption
    report = report_of(place, read_state(place))
    show("bisect", report, form, outputs)
    if stopped is not None:
        raise stopped
    click.get_current_context().exit(report.exit_status)


def _builds(words: tuple[str, ...], runs: Path, progress: Callable[[Any], None]) -> Callable[[str], Subject]:
    """What makes the build of a commit, or finds it in the cache, as the words of ``--base`` say."""
    return lambda commit: Builds((*words, f"ref={commit}"), (), runs).subjects(progress)["base"]


def one_step(
    build: Callable[[str], Subject], about: tuple[Path, str, str, float | None], good: str, means: dict[str, Any]
) -> Said:
    """Compare HEAD with the good commit; a commit that cannot be built or run is unknown.

    Raises:
        UsageError: The working tree has changes: what is measured must be the commit.
        PerfgateError: The good commit does not build, or the machine cannot measure.
    """
    from perfgate.bisect.lost_gate import compare_one
    from perfgate.project.build import Builder
    from perfgate.project.config import load_config

    if Builder(load_config(), means["progress"]).has_changes:
        raise UsageError("the working tree has changes, and the commit alone is measured",
                         remedy="Commit them, or put them away: git stash.")  # fmt: skip
    base = build(good)
    try:
        head = build("HEAD")
    except NotMeasuredError as error:
        click.echo(f"perfgate: {error}", err=True)
        return "unknown"
    return compare_one(about[0], {"base": base, "head": head}, *about[1:], **means)
