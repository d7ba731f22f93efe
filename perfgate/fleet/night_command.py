"""``perfgate nightly``; slow imports are in the body, so that ``--help`` answers at once."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.measuring import (
    BUDGET_OPTION,
    QUIET_OPTION,
    SCENARIOS,
    Builds,
    measured,
    measuring,
    naming_builds,
    restore_builds,
    resume_option,
)
from perfgate.cli.output_options import reported
from perfgate.errors import UsageError
from perfgate.fleet.commands import sharded

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome
    from perfgate.record.shards import Assigned


@click.command()
@SCENARIOS
@naming_builds
@resume_option("NIGHT", "this night instead (a folder, its name, or latest); it knows the rest.")
@BUDGET_OPTION
@sharded
@QUIET_OPTION
@click.pass_obj
@reported
def nightly(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    builds: Builds,
    folder: Path | None,
    budget_s: float,
    shard: Assigned | None,
) -> Outcome:
    """Measure the reference (--base) against itself, then the head against it, and name what may be promoted.

    Where perfgate.toml names an anchor, both are then measured beside it. Nothing is promoted: when the reference
    passed against itself, it is a candidate for one more visit, and the head one more night of its drift.
    """
    from perfgate.fleet.nightly import MANIFEST, candidate, night_of_the_head, read_night, resume_night, run_night
    from perfgate.report.run_folders import find_run

    if (folder is None) != bool(scenarios) or (folder is not None and (builds.base or builds.head)):
        raise UsageError("expected scenarios and subjects, or --resume NIGHT alone")
    if folder is not None and shard is not None:
        raise UsageError("--resume goes on with the night's own shard: --shard cannot be given")
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress, "budget_s": budget_s}
        if folder is not None:
            night = find_run(folder, builds.runs, MANIFEST)
            finished = resume_night(night, prepare=partial(restore_builds, progress), **means)
        else:
            subjects = builds.subjects(progress, scenarios)
            means |= {"anchor": builds.anchor(progress), "runs": builds.runs, "shard": shard}
            finished = run_night(scenarios, subjects, **means)
    outcome = measured(finished)
    if reference := candidate(finished.folder):
        side = "" if read_night(finished.folder).anchor else " --side base"
        promote = f"perfgate baseline promote {shlex.quote(str(reference))}{side}"
        click.echo(f"candidate for promotion: {promote}", err=True)
    if head := night_of_the_head(finished.folder):
        promote = f"perfgate baseline promote {shlex.quote(str(head))} --baselines heads --reason nightly"
        click.echo(f"a night of the head: {promote}", err=True)
    return outcome
