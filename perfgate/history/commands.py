"""The command that shows how metrics moved over many runs and nights.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import click

from perfgate.errors import ExitStatus, UsageError

NEEDED = ("duckdb", "ruptures")  # of the extra `history`


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False),
              help="Folder for the pages; index.html is the first.")  # fmt: skip
@click.option("--metric", "metrics", multiple=True, metavar="NAME",
              help="Only this metric; may be given several times. By default those with a gate.")  # fmt: skip
@click.option("--cache", type=click.Path(path_type=Path, dir_okay=False),
              help="File that keeps what was read; by default below ~/.cache/perfgate.")  # fmt: skip
@click.pass_context
def history(ctx: click.Context, sources: tuple[Path, ...], output: Path, metrics: tuple[str, ...],
            cache: Path | None) -> None:  # fmt: skip
    """Write pages of how each metric moved: over days and builds, beside an anchor, with the changes found.

    SOURCES are folders of runs and nights, baselines with their git history, and artifacts from GitHub (.zip). What
    cannot be read is named and left out. Ends with 21 where there is nothing to show.

    \b
    perfgate history runs baselines heads --output site
    perfgate history nights/*.zip --output site --metric itl_median
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        remedy = "Install perfgate with its extra: pip install 'perfgate[history]', in a clone '.[history]'."
        raise UsageError(f"perfgate history needs {' and '.join(missing)}", remedy=remedy)
    from perfgate.history.history_page import site
    from perfgate.history.point_table import opened
    from perfgate.history.points import all_series, metric_of
    from perfgate.history.sources import Sources
    from perfgate.machine.atomic_files import write_atomically
    from perfgate.machine.user_folders import users_caches

    if unknown := [name for name in metrics if metric_of(name) is None]:
        raise UsageError(f"--metric {unknown[0]}: there is no such metric", remedy="docs/scenario.md lists them.")
    caches = users_caches()
    usual = caches / "history.duckdb" if caches else None
    with ExitStack() as held:
        try:
            table = held.enter_context(opened(cache or usual))
        except UsageError as error:
            if cache is not None:
                raise
            click.echo(f"perfgate: {error.where}: {error.text}; everything is read anew", err=True)
            table = held.enter_context(opened(None))
        collection = Sources(table)
        for source in sources:
            collection.add(source)
        table.save()
        series = all_series(collection.points(datetime.now(UTC), metrics), metrics)
    for fault in collection.faults:
        click.echo(f"perfgate: left out: {fault.where}: {fault.why}", err=True)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in site(series, collection.faults).items():
        write_atomically(output / name, text)
    visits = len({(point.record, point.t0_utc) for trend in series for point in trend.points})
    click.echo(f"{output / 'index.html'}: {len(series)} series of {visits} visits; {len(collection.faults)} left out")
    if not series:
        click.echo("perfgate: no data: nothing that was named holds a measurement", err=True)
        ctx.exit(ExitStatus.NOT_COMPARABLE)
