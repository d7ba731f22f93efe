"""The commands that read what profilers left: kernels and their time, counters, and both side by side.

Imports are in the command bodies, as in :mod:`perfgate.cli.main`.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import click

from perfgate.cli.output_options import format_option
from perfgate.errors import UsageError
from perfgate.report.formats import render

ANSWERS = {
    "spread": "perfgate.report.trace_answers:spread_answer",
    "launches": "perfgate.report.trace_answers:launches_answer",
    "path": "perfgate.report.path_answer:path_answer",
}
"""What --show can show of a selection, and what answers it; imported when it is used."""
OF_LAYERS = ("spread",)
"""Those that can be of one layer."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Only this step: N of perfgate.step.N.")
@click.option("--layer", type=click.IntRange(0), help="Only this layer, from 0; with --step each launch is listed.")
@click.option(
    "--show",
    type=click.Choice(["kernels", *ANSWERS]),
    default="kernels",
    show_default=True,
    help="Which table: what kernels cost, how their time spreads, how launches arrive, or what bounds a step.",
)
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
def kernels(  # a parameter an option
    file: Path, step: int | None, layer: int | None, show: str, form: str, counted: Path | None, target: Path | None
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
    if show in ANSWERS:
        if counted is not None:
            raise UsageError(f"--counters shows counters beside kernels, --show {show} another table: give one of them")
        if layer is not None and show not in OF_LAYERS:
            raise UsageError(f"--show {show} is of whole steps: give --layer without it")
        click.echo(render("answer", form, resolve_name(ANSWERS[show])(selection)), nl=False)
        return
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
