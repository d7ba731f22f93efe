"""Commands about the machine rather than a measurement: is it fit, are its clocks free, is something left behind.

As in :mod:`perfgate.cli.main`, which has them among its own, imports stand in the command bodies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from perfgate.cli.measuring import BASE_OPTION, HEAD_OPTION, SCENARIOS, signals_as_interrupt
from perfgate.cli.output_options import RUNS_OPTION, format_option

NO_GPU = "no NVIDIA driver here, so no clocks to hold"


@click.command()
@click.option(
    "--job",
    is_flag=True,
    help="First end this GitHub job's runs that have an engine now.",
)
@click.option(
    "--runs",
    "root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Also make room below this folder: remove compile caches of killed runs, and old run folders.",
)
@click.option("--builds", is_flag=True, help="Also make room in the cache of builds: remove half and old ones.")
@click.option(
    "--days",
    type=click.FloatRange(0, min_open=True),
    default=14.0,
    show_default=True,
    help="A run folder in which nothing was measured for so long is old, and a build that no run asked for.",
)
def clean(job: bool, root: Path | None, builds: bool, days: float) -> None:  # noqa: FBT001 (flags)
    """End the engines that killed runs left behind; touches nothing that is not perfgate's."""
    from perfgate.errors import NotMeasuredError
    from perfgate.machine.cleanup import sweep
    from perfgate.machine.orphans import end_orphans, end_runs, find_orphans
    from perfgate.project.build import cache_folder, sweep_builds
    from perfgate.project.config import find_config, load_config

    ended = [*(end_runs(_job(os.environ)) if job else ()), *end_orphans()]
    for process in ended:
        click.echo(f"ended {process}")
    swept = list(sweep(root, days)) if root else []
    if builds:
        swept += sweep_builds(cache_folder(load_config(find_config(Path.cwd()))), days)
    for one in swept:
        click.echo(str(one))
    if left := find_orphans():
        raise NotMeasuredError("still alive: " + "; ".join(map(str, left)), code="start-refused")
    if not ended and not swept:
        click.echo("nothing to clean")


def _job(environment: Mapping[str, str]) -> dict[str, str]:
    """What every process of a GitHub job has in its environment and no other: a runner takes one job at a time.

    Raises:
        UsageError: This is no job.
    """
    from perfgate.errors import UsageError

    names = ("RUNNER_NAME", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")
    if missing := [name for name in names if not environment.get(name)]:
        raise UsageError(f"--job: not in a GitHub job: {', '.join(missing)} not set")
    return {name: environment[name] for name in names}


@click.group()
def clocks() -> None:
    """Show the clocks of GPUs, and undo locks that killed runs left."""


@clocks.command()
def show() -> None:
    """Per visible GPU: its clocks now, those it can hold, and who holds them."""
    from perfgate.machine.clocks import describe
    from perfgate.machine.nvml import connect

    nvml = connect()
    if nvml is None:
        click.echo(NO_GPU)
        return
    with nvml:
        shown = [describe(nvml, gpu) for gpu in nvml.gpus()]
    click.echo("\n".join(shown) or "no visible GPU")


@clocks.command()
@click.option("--gpu", "uuids", multiple=True, metavar="UUID", help="Only this GPU; may be given several times.")
def reset(uuids: tuple[str, ...]) -> None:
    """Undo the clock locks of runs that were killed, on the visible GPUs.

    A lock whose owner still runs is left alone, and is an error that names the owner.
    """
    from perfgate.errors import UsageError
    from perfgate.machine.clocks import reset as reset_clocks
    from perfgate.machine.nvml import connect

    nvml = connect()
    if nvml is None:
        click.echo(NO_GPU)
        return
    with nvml:
        there = [gpu.uuid for gpu in nvml.gpus()]
        if unknown := [uuid for uuid in uuids if uuid not in there]:
            raise UsageError(f"no visible GPU {unknown[0]}", remedy=f"There are: {', '.join(there) or 'none'}.")
        undone = reset_clocks(nvml, uuids or there)
    for lease in undone:
        click.echo(f"{lease.uuid}: undone: {lease}")
    if not undone:
        click.echo("no lock to undo")


@click.command()
@SCENARIOS
@BASE_OPTION
@HEAD_OPTION
@RUNS_OPTION
@click.option("--deep", is_flag=True, help="Also run nsys and ncu on a tiny program; a minute or two each build.")
@format_option("doctor")
def doctor(
    scenarios: tuple[Path, ...],
    base_words: tuple[str, ...],
    head_words: tuple[str, ...],
    form: str,
    **how: Any,
) -> None:
    """Find out whether this machine can measure, and say how to fix what is missing. Nothing is changed.

    With scenarios and subjects it also looks at their clocks, models and interpreters. Ends with 22 where a check
    failed, else with 0.
    """
    from perfgate.doctor.machine_checks import diagnose
    from perfgate.project.config import find_config, load_config
    from perfgate.project.subjects import resolve
    from perfgate.report.formats import render
    from perfgate.scenario.declaration import load

    loaded = tuple(load(file) for file in scenarios)
    tables = load_config(find_config(Path.cwd())).subjects
    if not (base_words or head_words):  # nothing is built here, so what needs it is not looked at unasked
        tables = {name: table for name, table in tables.items() if "ref" not in table}
    named = base_words or head_words or tables
    subjects = resolve(base_words, head_words, tables) if named else {}
    with signals_as_interrupt():
        diagnosis = diagnose(loaded, subjects, progress=lambda text: click.echo(f"perfgate: {text}", err=True), **how)
    click.echo(render("doctor", form, diagnosis), nl=False)
    click.get_current_context().exit(diagnosis.exit_status)
