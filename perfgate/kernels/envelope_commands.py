"""The commands about a scenario's kernels block; slow imports are in the bodies, so that ``--help`` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.cli.measuring import BASE_OPTION, QUIET_OPTION, Builds, measured, measuring, naming_builds
from perfgate.cli.output_options import RUNS_OPTION, reported, run_named

if TYPE_CHECKING:
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.sides import Side
    from perfgate.scenario.subject import Subject


@click.group()
def envelope() -> None:
    """The kernels that a decode step may run: learn them from a build, check another against them."""


@envelope.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@BASE_OPTION
@RUNS_OPTION
@QUIET_OPTION
@click.option("--from", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN",
              help="Learn from the traced pairs of this run instead of tracing.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the scenario instead of writing it.")
def learn(scenario: Path, base_words: tuple[str, ...], runs: Path, folder: Path | None, *, dry_run: bool) -> None:
    """Trace one build against itself and write what its decode steps run into the scenario's kernels block.

    Read the difference before committing it: it is what every later head is held to, exactly. Where tracing was
    interrupted, go on with perfgate run --resume FOLDER and then learn --from FOLDER.
    """
    from perfgate import gate
    from perfgate.machine.atomic_files import write_atomically

    if folder is not None:
        folder = run_named(folder, runs)
    else:
        with measuring() as progress:
            base = Builds(base_words, (), runs).subjects(progress)["base"]
            both: dict[Side, Subject] = {"base": base, "head": base}
            folder = gate.run([scenario], both, runs=runs, progress=progress, kernels_only=True).folder
        click.echo(f"run folder: {folder}", err=True)
    text = gate.learn_envelope(scenario, folder)
    if dry_run:
        click.echo(text, nl=False)
        return
    write_atomically(scenario, text)
    click.echo(f"perfgate: {scenario} has a new kernels block", err=True)


@envelope.command("check")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@naming_builds
@QUIET_OPTION
@reported
def check_envelope(scenarios: tuple[Path, ...], builds: Builds) -> Outcome:
    """Trace a pair and hold both sides' decode steps against the scenario's kernels block; minutes, no latency."""
    from perfgate import gate

    with measuring() as progress:
        subjects = builds.subjects(progress, scenarios)
        finished = gate.check_envelope(scenarios, subjects, runs=builds.runs, progress=progress)
    return measured(finished)
