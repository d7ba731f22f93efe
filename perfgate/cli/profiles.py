"""The commands that read what profilers left: kernels and their time, counters, and both side by side.

Imports are in the command bodies, as in :mod:`perfgate.cli.main`.
"""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.output_options import format_option
from perfgate.errors import UsageError
from perfgate.report.formats import render


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Only this step: N of perfgate.step.N.")
@click.option("--layer", type=click.IntRange(0), help="Only this layer, from 0; with --step each launch is listed.")
@format_option("kernels")
@click.option(
    "--counters",
    "counted",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show beside the times what ncu counted of the same workload: its report or its raw page as CSV.",
)
@click.option(
    "--scrub",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT",
    help="Write a copy without environment, host, user, paths and GPU identity instead.",
)
def kernels(
    file: Path, step: int | None, layer: int | None, form: str, counted: Path | None, target: Path | None
) -> None:
    """Print what decode steps run, role by role and kernel by kernel.

    FILE is a report of nsys, an SQLite export of one, or a trace of PyTorch's profiler (JSON); gzip is fine.
    """
    from perfgate.counters.report_file import read_counters
    from perfgate.counters.trace_join import join
    from perfgate.trace.scrub import scrub
    from perfgate.trace.selection import select
    from perfgate.trace.trace_file import read_trace

    if target is not None:
        if counted is not None:
            raise UsageError("--scrub writes a copy of the trace, --counters prints a table: give one of them")
        scrub(file, target)
        click.echo(f"{target}: written, scrubbed", err=True)
        return
    selection = select(read_trace(file), step, layer)
    report, about = ("kernels", selection) if counted is None else ("joined", join(selection, read_counters(counted)))
    click.echo(render(report, form, about), nl=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@format_option("counters")
def counters(file: Path, form: str) -> None:
    """Print what ncu counted, kernel by kernel: each counter in words, and how far the kernel is from its roof.

    FILE is what ncu --csv --page raw printed, log lines and all, or with perfgate[ncu] its report; gzip is fine.
    """
    from perfgate.counters.report_file import read_counters

    click.echo(render("counters", form, read_counters(file)), nl=False)
