"""The commands about kernels: what profilers left, times beside counters, and what a decode step may run.

Slow imports are in the bodies, as in :mod:`perfgate.cli.results`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.cli.measuring import BASE_OPTION, QUIET_OPTION, Builds, measured, measuring, naming_builds
from perfgate.cli.output_options import RUNS_OPTION, format_option, reported, run_named
from perfgate.errors import UsageError
from perfgate.report.formats import render

if TYPE_CHECKING:
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.sides import Side
    from perfgate.scenario.subject import Subject

ANSWERS = ("spread", "launches", "path")
"""What --show can show of one file, each by a function of :mod:`perfgate.kernels.trace_answers`."""
OF_LAYERS = ("kernels", "spread", "counters", "scrub")
"""What can be shown of one layer."""
INSTEAD = {
    "scrub": "--scrub writes a copy of the trace",
    "diff": "--diff compares two traces",
    "counters": "--counters prints a table",
}
"""Options that change what the command does, so that only one of them can be given."""


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Only this step: N of perfgate.step.N.")
@click.option("--whole", is_flag=True, help="The whole trace as one step, whatever steps it has.")
@click.option("--layer", type=click.IntRange(0), help="Only this layer, from 0; with --step each launch is listed.")
@click.option(
    "--show",
    type=click.Choice(["kernels", *ANSWERS, "memory", "ranks"]),
    help="Which table: what kernels cost (the default), how their times spread, how launches arrive, what bounds a "
    "step, what was allocated when, or which rank the others wait for (the default of several files).",
)
@click.option(
    "--diff",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the difference to this trace of another build comes from.",
)
@format_option("kernels")
@click.option(
    "--counters",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show beside the times what ncu counted of the same workload: its report or its raw page as CSV.",
)
@click.option(
    "--scrub",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT",
    help="Write a copy without environment, host, user, paths and GPU identity instead.",
)
def kernels(
    files: tuple[Path, ...],
    step: int | None,
    layer: int | None,
    show: str | None,
    form: str,
    *,
    whole: bool,
    **instead: Path | None,
) -> None:
    """Print what decode steps run, role by role and kernel by kernel.

    FILE is a report of nsys, an SQLite export of one, or JSON of the profilers of PyTorch, Ascend, ONNX
    Runtime or TensorRT; gzip is fine. Several files are the ranks of one run.
    """
    from perfgate.counters.report_file import read_counters
    from perfgate.counters.trace_join import join
    from perfgate.kernels import trace_answers
    from perfgate.kernels.compared_traces import difference_answer, ranks_answer
    from perfgate.trace.memory_timeline import read_memory
    from perfgate.trace.scrub import scrub
    from perfgate.trace.selection import as_one_step, select
    from perfgate.trace.trace_file import as_plain_file, read_ranks, read_trace

    asked, other = _asked(len(files), show, instead)
    _check_part(asked, step, layer, whole=whole)
    if asked == "scrub" and other:
        scrub(files[0], other)
        click.echo(f"{other}: written, scrubbed", err=True)
        return
    if asked == "memory":
        with as_plain_file(files[0]) as plain:
            timeline = read_memory(plain)
            answer = trace_answers.memory_answer(timeline, read_trace(plain) if timeline.traced else None)
        click.echo(render("answer", form, answer), nl=False)
        return
    given = [*files, other] if asked == "diff" and other else files
    read = read_ranks(given) if asked == "ranks" else [(file, read_trace(file)) for file in given]
    chosen = [select(as_one_step(trace) if whole else trace, step, layer) for _, trace in read]
    given = [file for file, _ in read]
    names = [file.name for file in given]
    named = list(zip(names if len({*names}) == len(names) else map(str, given), chosen, strict=True))
    report: str = "answer"
    about: object
    if asked == "ranks":
        about = ranks_answer(named)
    elif asked == "diff":
        about = difference_answer({"base": named[0], "head": named[1]})
    elif asked == "counters" and other:
        report, about = "joined", join(chosen[0], read_counters(other))
    elif asked == "kernels":
        report, about = "kernels", chosen[0]
    else:
        about = getattr(trace_answers, f"{asked}_answer")(chosen[0])
    click.echo(render(report, form, about), nl=False)


def _asked(files: int, show: str | None, instead: dict[str, Path | None]) -> tuple[str, Path | None]:
    """What is asked in a word, of INSTEAD or --show, and the other file that it needs."""
    options = [(name, file) for name in INSTEAD if (file := instead[name]) is not None]
    words = [INSTEAD[name] for name, _ in options] + ([f"--show {show} another one"] if show else [])
    if len(words) > 1:
        raise UsageError(f"{', '.join(words[:2])}: give one of them")
    asked, other = options[0] if options else (show or ("ranks" if files > 1 else "kernels"), None)
    if files > 1 and asked != "ranks":
        raise UsageError(f"several files are the ranks of one run: give {_option(asked)} one file")
    return asked, other


def _check_part(asked: str, step: int | None, layer: int | None, *, whole: bool) -> None:
    """Refuse a part of a trace that what is asked cannot be of."""
    if whole and step is not None:
        raise UsageError("--whole takes the trace for one step, --step chooses one: give one of them")
    if layer is not None and asked not in OF_LAYERS:
        raise UsageError(f"{_option(asked)} is of whole steps: give --layer without it")
    if (step is not None or whole) and asked == "memory":
        raise UsageError(f"{_option(asked)} is of the whole file, step by step: give it alone")


def _option(asked: str) -> str:
    return f"--{asked}" if asked in INSTEAD else f"--show {asked}"


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@format_option("counters")
def counters(file: Path, form: str) -> None:
    """Print what ncu counted, kernel by kernel: each counter in words, and how far the kernel is from its roof.

    FILE is what ncu --csv --page raw printed, log lines and all, or with perfgate[ncu] its report; gzip is fine.
    """
    from perfgate.counters.report_file import read_counters

    click.echo(render("counters", form, read_counters(file)), nl=False)


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
