"""Commands about the machine rather than a measurement: are its clocks free, is something left behind.

Slow imports are in the bodies of commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from perfgate import rooms
from perfgate.errors import NotMeasuredError, UsageError

NO_GPU = "no NVIDIA driver here, so no clocks to hold"


@click.command()
@rooms.with_options("clean")
@click.option(
    "--runs",
    "root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Also make room below this folder: remove compile caches of killed runs, and old run folders.",
)
@click.option("--builds", is_flag=True, help="Also make room in the cache of builds: remove half and old ones.")
@click.option("--caches", is_flag=True, help="Also remove kept compile caches that are broken or old.")
@click.option(
    "--days",
    type=click.FloatRange(0, min_open=True),
    default=14.0,
    show_default=True,
    help="A run folder in which nothing was measured for so long is old, and a build or cache that no run asked for.",
)
def clean(root: Path | None, builds: bool, caches: bool, days: float, ended: Sequence[object] = ()) -> None:  # noqa: FBT001
    """End the engines that killed runs left behind; touches nothing that is not perfgate's."""
    from perfgate.capture.compile_caches import sweep_caches
    from perfgate.machine.cleanup import sweep
    from perfgate.machine.orphans import end_orphans, find_orphans

    ended = [*ended, *end_orphans()]
    for process in ended:
        click.echo(f"ended {process}")
    # Before anything is removed: the file may be wrong.
    built = rooms.use("builds").cache_folder(rooms.use("config").load_config()) if builds else None
    swept = list(sweep(root, days)) if root else []
    if built:
        swept += rooms.use("builds").sweep_builds(built, days)
    if caches:
        swept += sweep_caches(days)
    for folder in swept:
        click.echo(str(folder))
    if left := find_orphans():
        raise NotMeasuredError("still alive: " + "; ".join(map(str, left)), code="process-left")
    if not ended and not swept:
        click.echo("nothing to clean")


@click.group()
def clocks() -> None:
    """Show the clocks of GPUs, and undo locks that killed runs left."""


@clocks.command()
def show() -> None:
    """Per visible GPU: its clocks now, those it can hold, and who holds them."""
    from perfgate.machine.accelerator import connect
    from perfgate.machine.clocks import describe

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
    from perfgate.machine.accelerator import connect
    from perfgate.machine.clocks import reset as reset_clocks

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
