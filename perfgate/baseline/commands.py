"""Commands about stored baselines: promote a run, list them, show one, its lineage, verify, and what is between two.

Slow imports are in the bodies of commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.output_options import (
    RUNS_OPTION,
    echo_document,
    folder_option,
    format_option,
    lines,
    run_named,
    terminal_width,
)
from perfgate.errors import ExitStatus, RecordError, UsageError
from perfgate.report.formats import render

BASELINES_OPTION = folder_option("baselines", "Folder of baselines")
SINCE_OPTION = click.option(
    "--since", "ref", metavar="REF", help="The file as it is at this commit; by default at HEAD, where there is one."
)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def baseline() -> None:
    """What a build took on one class of machines, visit by visit, to hold later builds against."""


@baseline.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@BASELINES_OPTION
@RUNS_OPTION
@click.option("--reason", default="", help="Why; needed unless the run is equivalent to the baseline.")
@click.option("--cell", "cells", multiple=True, metavar="NAME", help="Only this cell; may be given several times.")
@click.option("--side", type=click.Choice(["base", "head"]), help="By default the head if it passed, else the base.")
@click.option(
    "--scenarios",
    callback=lines,
    default="",
    help="Patterns of files, one a line: the run's scenarios must be copies of some. For runs that others measured.",
)
@click.option(
    "--same-build",
    "claim",
    flag_value="same-build",
    help="Vouch, with a reason, for a build that has path= or env= of its own.",
)
@click.option("--anew", "claim", flag_value="anew",
              help="Begin anew, with a reason: visits before it count no longer.")  # fmt: skip
def promote(folder: Path, baselines: Path, runs: Path, scenarios: tuple[str, ...], **how: Any) -> None:
    """Add what a run measured to the baselines, each cell in its file; nothing is committed.

    The same build measured again, or one shown to be equivalent, adds its visits. Anything else needs a reason, and
    begins anew: visits before it count no longer.
    """
    from perfgate.baseline.baseline_page import promoted_document
    from perfgate.baseline.promotion import promote as promote_run

    files = [file for pattern in scenarios for file in sorted(Path().glob(pattern)) if file.is_file()]
    promoted = promote_run(run_named(folder, runs), baselines, scenarios=files if scenarios else None, **how)
    echo_document(promoted_document(promoted))


@baseline.command("list")
@BASELINES_OPTION
def list_baselines(baselines: Path) -> None:
    """List the baselines, with their visits and whether they can block."""
    from perfgate.baseline.baseline_page import list_document
    from perfgate.baseline.store import files, read

    lineages = [read(file) for file in files(baselines)]
    if lineages:
        echo_document(list_document(lineages))
    else:
        click.echo(f"no baselines in {baselines}")


@baseline.command()
@click.argument("file", type=FILE)
def show(file: Path) -> None:
    """Show a baseline: what, where, which build, and every metric with its spread between visits."""
    from perfgate.baseline.baseline_page import baseline_document
    from perfgate.baseline.store import read

    echo_document(baseline_document(read(file).baseline))


@baseline.command()
@click.argument("file", type=FILE)
def log(file: Path) -> None:
    """Show a baseline's lineage, the newest promotion first: who, when, why, from which record."""
    from perfgate.baseline.baseline_page import log_document
    from perfgate.baseline.store import read

    echo_document(log_document(read(file).baseline))


@baseline.command()
@click.argument("files", nargs=-1, type=FILE)
@BASELINES_OPTION
@SINCE_OPTION
def verify(files: tuple[Path, ...], baselines: Path, ref: str | None) -> None:
    """Recompute every lineage, and see that what was committed before only grew.

    Ends with 2 and names the entry where one was changed, dropped, added or put elsewhere.
    """
    from perfgate.baseline.store import files as all_files
    from perfgate.baseline.store import verify as verify_files

    chosen = files or tuple(all_files(baselines))
    for file, lineage in verify_files(chosen, None if files else baselines, ref):
        click.echo(f"{file}: {len(lineage.entries)} promotions, whole")
    if not chosen:
        click.echo(f"no baselines in {baselines}")


@baseline.command()
@click.argument("file", type=FILE)
@click.argument("other", type=FILE, required=False)
@SINCE_OPTION
def diff(file: Path, other: Path | None, ref: str | None) -> None:
    """Show what is between two baselines, or between one and what it was at a commit: promotions, cell, metrics."""
    from perfgate.baseline.baseline_page import diff_document
    from perfgate.baseline.store import parse_as_of, read

    if other is not None and ref is not None:
        raise UsageError("give another file or --since, not both")
    before = read(file).baseline if other is not None else parse_as_of(file, ref or "HEAD")
    if before is None:
        raise RecordError(f"is not there at {ref or 'HEAD'}: it is new", where=str(file))
    echo_document(diff_document(before, read(other or file).baseline))


@baseline.command()
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@BASELINES_OPTION
@format_option("drift")
def drift(scenarios: tuple[Path, ...], baselines: Path, form: str) -> None:
    """Hold the nights of each cell against the budgets of its scenario's drift: key; draw them and their anchor.

    Every visit beside an anchor counts, of whatever build. Ends with 10 where a budget is overdrawn, and names the
    builds in between; else with 20 where a budget has too few nights, or its cell none. Without the key the nights of
    gated metrics are drawn, and nothing is found: name the folder of the reference's baselines to see how that drifts.
    """
    from perfgate.baseline.night_series import held_to_budgets

    budgeted = held_to_budgets(scenarios, baselines)
    for file in budgeted.unbudgeted:
        click.echo(f"perfgate: {file}: no drift budget, so its nights are drawn and held against nothing", err=True)
    for cell, file in budgeted.without_nights:
        click.echo(f"perfgate: {baselines}: no nights of {cell} as {file} has it: promote some", err=True)
    click.echo(render("drift", form, budgeted.drifts, terminal_width()), nl=False)
    undecided = ExitStatus.PASS if budgeted.decided else ExitStatus.INCONCLUSIVE
    status = ExitStatus.REGRESSED if budgeted.over else undecided
    click.get_current_context().exit(status)
