"""``perfgate doctor``: is this machine fit to measure. Slow imports are in the body: ``--help`` answers at once."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.measuring import SCENARIOS, Builds, naming_builds, signals_as_interrupt
from perfgate.cli.output_options import format_option, say
from perfgate.report.formats import render


@click.command()
@SCENARIOS
@naming_builds
@click.option("--deep", is_flag=True, help="Also run nsys and ncu on a tiny program; a minute or two each build.")
@format_option("doctor")
def doctor(scenarios: tuple[Path, ...], builds: Builds, deep: bool, form: str) -> None:  # noqa: FBT001 (a flag)
    """Find out whether this machine can measure, and say how to fix what is missing. Nothing is changed.

    With scenarios and subjects it also looks at their clocks, models and interpreters. Ends with 22 where a check
    failed, else with 0.
    """
    from perfgate.doctor.machine_checks import diagnose
    from perfgate.project.config import load_config
    from perfgate.scenario.declaration import load
    from perfgate.scenario.subject_words import resolve

    loaded = tuple(load(file) for file in scenarios)
    tables = load_config().subjects
    if not (builds.base or builds.head):  # nothing is built here, so what needs it is not looked at unasked
        tables = {name: table for name, table in tables.items() if "ref" not in table}
    subjects = resolve(builds.base, builds.head, tables) if builds.base or builds.head or tables else {}

    with signals_as_interrupt():
        diagnosis = diagnose(loaded, subjects, runs=builds.runs, deep=deep, progress=say)
    click.echo(render("doctor", form, diagnosis), nl=False)
    click.get_current_context().exit(diagnosis.exit_status)
