"""What commands have in common: the folder of runs, words at the Tab key, how a report is shown, the exit status.

Slow imports are where they are needed, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate import rooms
from perfgate.cli.outlet import Outlet, abandon, command
from perfgate.errors import ExitStatus, UsageError
from perfgate.report.document import Document
from perfgate.report.formats import format_of, formats, formats_of, render
from perfgate.report.text import to_text

if TYPE_CHECKING:
    from perfgate.judge.outcome import Outcome

RUN_FOLDER = "perfgate.run_folder"  # where the context of a command keeps the folder of the run that it made


def in_project(name: str) -> str:
    """A folder of the project, as it is called from here: beside the ``perfgate.toml`` that holds here, else here."""
    from perfgate.scenario.subject_words import find_config

    file = find_config()
    return name if file is None else os.path.relpath(file.parent / name)


def subject_tables() -> Mapping[str, dict[str, Any]]:
    """The subjects that ``perfgate.toml`` declares, by name.

    Raises:
        UsageError: The file is wrong, or is there and this perfgate cannot read it.
    """
    from perfgate.scenario.subject_words import find_config

    if find_config() is None:
        return {}
    tables: Mapping[str, dict[str, Any]] = rooms.use("config").load_config().subjects
    return tables


def folder_option(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for a folder of the project that is called like the option."""
    return click.option(
        f"--{name}",
        default=functools.partial(in_project, name),
        type=click.Path(path_type=Path, file_okay=False),
        help=f"{what}; by default {name}, beside perfgate.toml.",
    )


RUNS = "runs"  # the folder in which a run is looked for by its name, unless `--runs` names another one
RUNS_OPTION = folder_option(RUNS, "Folder for run folders")


def say(text: str) -> None:
    """Tell what the report does not hold."""
    click.echo(f"perfgate: {text}", err=True)


def run_named(word: Path, runs: Path) -> Path:
    """The run folder that a word means, of which the newest that measured anything is the latest.

    Raises:
        PerfgateError: See :func:`perfgate.report.run_folders.find_run`.
    """
    from perfgate.report.run_folders import find_run

    return find_run(word, runs, tell=say)


def complete_subjects(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The subjects of ``perfgate.toml``, and the keys of those that are written out."""
    try:
        named = [*subject_tables()]
    except UsageError:  # check says what is wrong with it
        named = []
    return [word for word in (*named, "python=", "path=", "env.", "args.", "ref=") if word.startswith(begun)]


def complete_runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The word for the newest run, and the names of all of them, the newest first."""
    from perfgate.report.run_folders import LATEST, list_runs

    names = [run.name for run in list_runs(Path(context.params.get("runs") or in_project(RUNS)))]
    return [word for word in (LATEST, *names) if word.startswith(begun)]


def complete_runs_and_codes(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The runs, then the reason codes."""
    from perfgate.reasons import REASONS

    return [*complete_runs(context, parameter, begun), *(code for code in REASONS if code.startswith(begun))]


class _FormatChoice(click.Choice[str]):
    """The formats of a report as the table has them when they are asked for."""

    def __init__(self, report: str) -> None:
        self._report = report
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        """Every name."""
        return formats_of(self._report)

    @choices.setter
    def choices(self, _: object) -> None:
        """The table is elsewhere."""


def format_option(report: str, more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--format`` with the formats that a report of :data:`perfgate.report.formats.REPORTS` has."""
    shown = f"By default text on a terminal, else Markdown.{more}"
    return click.option("--format", "form", type=_FormatChoice(report), default=_usual, help=shown)


def _usual() -> str:
    return "text" if sys.stdout.isatty() else "markdown"


def echo_document(document: Document, *, width: int | None = None) -> None:
    """Print what has no formats to choose from."""
    echo_text(to_text(replace(document, width=width)))


def echo_text(text: str) -> None:
    """Print a report in text, with colours where the terminal shows them."""
    if isinstance(sys.stdout, Outlet) and sys.stdout.in_colours:
        from perfgate.cli.report_colours import echo_coloured

        echo_coloured(text, sys.stdout)
    else:
        click.echo(text, nl=False)


def show(name: str, report: object, form: str, outputs: Sequence[Path]) -> None:
    """Print a report and write it to its files."""
    click.echo(render(name, form, report, terminal_width()), nl=False)
    for file in outputs:
        file.write_text(render(name, format_of(file, name), report), encoding="utf-8")


def lines(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    """Lines of an action's input: one word a line, empty ones dropped."""
    return tuple(filter(None, map(str.strip, value.splitlines())))


def terminal_width() -> int | None:
    """Columns of the terminal that shows stdout; ``None`` elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def reported(command: Callable[..., Outcome]) -> Callable[..., None]:
    """Give a command the options for its report; it returns the outcome, which is printed and sets the exit status."""

    @format_option("outcome", " github also fills a job's summary and outputs.")
    @click.option(
        "--output",
        "outputs",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write a report to this file (.txt, .md, .html, .json, .xml for JUnit); may be given several times.",
    )
    @click.option("--exit-zero", is_flag=True, help="End with 0 whatever the verdict: report only.")
    @functools.wraps(command)
    def with_report(*passed: Any, form: str, outputs: tuple[Path, ...], exit_zero: bool, **rest: Any) -> None:
        check_outputs(outputs)
        outcome = command(*passed, **rest)
        deliver(outcome, form, outputs, exit_zero=exit_zero)

    return with_report  # fmt: skip


def check_outputs(outputs: tuple[Path, ...], report: str = "outcome") -> None:
    """Refuse outputs that could not be written before anything is measured."""
    for file in outputs:
        format_of(file, report)
        if not file.resolve().parent.is_dir():
            raise UsageError(f"--output {file}: its folder does not exist")
        if not os.access(file if file.exists() else file.resolve().parent, os.W_OK):
            raise UsageError(f"--output {file}: this user may not write there")


def deliver(outcome: Outcome, form: str, outputs: tuple[Path, ...], *, exit_zero: bool) -> None:
    """Print and write the outcome, and end with its exit status.

    What cannot be delivered costs neither the other reports nor a verdict that blocks. Only a status of 0 becomes 22:
    it promises that every report asked for was written.
    """
    lost: list[str] = []
    with _noting(lost, "stdout"):  # first, so that a file that cannot be written costs no result
        try:
            shown = _rendered(outcome, form, terminal_width())
            if form == "text":
                echo_text(shown)
            else:
                # What a service reads as commands is bracketed by itself.
                echo = command if formats()[form].deliver else click.echo
                echo(shown.removesuffix("\n"))
        except OSError:
            abandon(sys.stdout)
            raise
    for file in outputs:
        with _noting(lost, f"--output {file}"):
            file.write_text(_rendered(outcome, format_of(file)), encoding="utf-8")
    if place := formats()[form].deliver:
        with _noting(lost, "the job's summary and outputs"):
            rooms.bring(place)(outcome, click.get_current_context().meta.get(RUN_FOLDER, ""))
    status = ExitStatus.PASS if exit_zero else ExitStatus(outcome.exit_status)
    for report in lost:
        click.echo(f"perfgate: the report could not be written to {report}", err=True)
    if lost:
        folder = click.get_current_context().meta.get(RUN_FOLDER)
        again = f"write the report again with perfgate judge {shlex.quote(str(folder))}"
        kept = f", kept in {folder}: {again}" if folder else ""
        click.echo(f"  The verdict is {outcome.verdict} (exit status {outcome.exit_status}){kept}.", err=True)
    click.get_current_context().exit(status or (ExitStatus.NOT_MEASURED if lost else status))


def _rendered(outcome: Outcome, form: str, width: int | None = None) -> str:
    """The outcome in a format; a page shows the records of the run too, where the command has a run."""
    folder = click.get_current_context().meta.get(RUN_FOLDER)
    about: object = outcome
    on_a_terminal = form == "text" and width is not None
    if (form == "html" or on_a_terminal) and folder is not None:
        from perfgate.report.dot_plot import terminal_text
        from perfgate.report.run_page import MeasuredRun

        about = measured = MeasuredRun.of(outcome, Path(folder))
        if width is not None and on_a_terminal:
            return terminal_text(measured, width)
    return render("outcome", form, about, width)


@contextlib.contextmanager
def _noting(lost: list[str], what: str) -> Iterator[None]:
    """Note what could not be written, and why, instead of ending with it."""
    try:
        yield
    except OSError as error:
        lost.append(f"{what}: {error.strerror or error}")
