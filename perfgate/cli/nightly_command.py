"""The command of the night; as in :mod:`perfgate.cli.main`, which has it among its own, imports stand in its body."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.github_commands import RUN_FOLDER
from perfgate.cli.machine_commands import signals_as_interrupt
from perfgate.cli.output_options import RUNS_OPTION, reported
from perfgate.cli.subject_options import BASE_OPTION, HEAD_OPTION, restore_builds, subjects_of

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path))
@BASE_OPTION
@HEAD_OPTION
@RUNS_OPTION
@click.option("--resume", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="NIGHT",
              help="Go on with this night instead (a folder, its name, or latest); it knows the rest.")  # fmt: skip
@click.option("--budget", "minutes", type=click.FloatRange(0, min_open=True), metavar="MINUTES",
              help="Begin no pair that would not end within this time.")  # fmt: skip
@click.pass_obj
@reported
def nightly(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    base_words: tuple[str, ...],
    head_words: tuple[str, ...],
    runs: Path,
    folder: Path | None,
    minutes: float | None,
) -> Outcome:
    """Measure the reference (--base) against itself, then the head against it, and name what may be promoted.

    Nothing is promoted: on a night on which the reference held still, it is a candidate for one more visit.
    """
    from perfgate.cli.progress import progress_to
    from perfgate.errors import UsageError
    from perfgate.nightly import MANIFEST, candidate, resume_night, run_night
    from perfgate.report.run_folders import find_run

    if (folder is None) != bool(scenarios) or (folder is not None and (base_words or head_words)):
        raise UsageError("expected scenarios and subjects, or --resume NIGHT alone")
    with signals_as_interrupt(), progress_to(sys.stderr) as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress}
        if minutes is not None:
            means["budget_s"] = minutes * 60
        if folder is not None:
            finished = resume_night(find_run(folder, runs, MANIFEST), prepare=restore_builds(progress), **means)
        else:
            subjects = subjects_of(base_words, head_words, progress, runs=runs, scenarios=scenarios)
            finished = run_night(scenarios, subjects, runs=runs, **means)
    click.echo(f"run folder: {finished.folder}", err=True)
    if found := candidate(finished.folder):
        words = f"perfgate baseline promote {shlex.quote(str(found))} --side base"
        click.echo(f"candidate for promotion: {words}", err=True)
    click.get_current_context().meta[RUN_FOLDER] = finished.folder
    return finished.outcome
