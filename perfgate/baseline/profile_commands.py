"""The commands about exact profiles; slow imports are in the bodies, so that ``--help`` answers at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.measuring import BASE_OPTION, QUIET_OPTION, Builds, measured, measuring, naming_builds
from perfgate.cli.output_options import RUNS_OPTION, deliver, folder_option, reported, run_named
from perfgate.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.sides import Side
    from perfgate.scenario.subject import Subject

PROFILES_OPTION = folder_option("profiles", "Folder of profiles")


@click.group()
def profile() -> None:
    """What repeats exactly in a decode step: keep it of one build, check another against it in one trial a kind."""


@profile.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@BASE_OPTION
@RUNS_OPTION
@QUIET_OPTION
@PROFILES_OPTION
@click.option("--reason", default="", help="Why this is what the scenario runs from now on; kept in the profile.")
@click.option("--from", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN",
              help="Learn from the called trials of this run instead of counting.")  # fmt: skip
@click.option("--side", type=click.Choice(["base", "head"]), help="With --from: the side of a run of two builds.")
@click.pass_obj
def learn(  # noqa: PLR0913 (an option each)
    collector: Collector | None,
    *,
    scenario: Path | None,
    base_words: tuple[str, ...],
    runs: Path,
    profiles: Path,
    reason: str,
    folder: Path | None,
    side: Side | None,
) -> None:
    """Count what one build's host calls in two engines, and write it into a profile for each cell.

    Commit the files. What differs between the two engines is kept as a range; where they would not pass as base and
    head of each other, nothing is written, and the report says why. To accept a change, learn from the run that showed
    it: perfgate profile learn --from RUN --side head --reason '...'.
    """
    from perfgate import gate
    from perfgate.baseline.exact_profile import check_reason, learn_profiles

    if (scenario is None) == (folder is None):
        raise UsageError("name a scenario, or a run with --from")
    check_reason(reason)
    if folder is not None:
        folder = run_named(folder, runs)
    elif scenario is not None:
        with measuring() as progress:
            base = Builds(base_words, (), runs).subjects(progress, [scenario])["base"]
            both: dict[Side, Subject] = {"base": base, "head": base}
            means: dict[str, Any] = {"collector": collector, "progress": progress}
            finished = gate.run([scenario], both, runs=runs, exact_only=True, **means)
        folder = finished.folder
        outcome = measured(finished)
        if outcome.exit_status != ExitStatus.PASS:  # each check would end as this, whatever its head
            click.echo("no profile was written: a build beside itself does not pass", err=True)
            if outcome.exit_status in (ExitStatus.REGRESSED, ExitStatus.INCONCLUSIVE):
                again = f"perfgate profile learn --from {shlex.quote(str(folder))} --reason ..."
                click.echo(f"  To accept what its engines ran all the same: {again}", err=True)
            deliver(outcome, "text", (), exit_zero=False)
    for file in learn_profiles(folder or runs, profiles, reason, side):
        click.echo(file)


@profile.command()
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@naming_builds
@QUIET_OPTION
@PROFILES_OPTION
@reported
def check(scenarios: tuple[Path, ...], builds: Builds, profiles: Path) -> Outcome:
    """Hold one build against the stored profiles: one trial a kind, nothing is timed.

    Exit status 10 where its host does more than the scenario ignores, or a decode step leaves the envelope; 0 where
    it does the same or the change is cheap, with the difference.
    """
    from perfgate import gate

    with measuring() as progress:
        subjects = builds.subjects(progress, scenarios)
        alone: dict[Side, Subject] = {"head": subjects.get("head", subjects["base"])}
        finished = gate.check_profiles(scenarios, alone, profiles, runs=builds.runs, progress=progress)
    return measured(finished)
