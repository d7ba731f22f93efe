"""What commands that end with an outcome have in common: where runs lie, how the report is shown, the exit status.

As in :mod:`perfgate.cli.main`, imports stand where they are needed, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.github_commands import RUN_FOLDER, publish
from perfgate.cli.outlet import command
from perfgate.cli.streams import abandon
from perfgate.errors import ExitStatus

if TYPE_CHECKING:
    from perfgate.judge.outcome import Outcome

RUNS_OPTION = click.option(
    "--runs",
    default="runs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for run folders.",
    show_default=True,
)


def reported(command: Callable[..., Outcome]) -> Callable[..., None]:
    """Give a command the options for its report; it returns the outcome, which is printed and sets the exit status."""

    @click.option(
        "--format",
        "form",
        type=click.Choice(["text", "markdown", "json", "junit", "github"]),
        help="Of stdout; by default text on a terminal, else Markdown. github also fills a job's summary and outputs.",
    )
    @click.option(
        "--output",
        "outputs",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write a report to this file (.txt, .md, .json, .xml for JUnit); may be given several times.",
    )
    @click.option("--exit-zero", is_flag=True, help="End with 0 whatever the verdict: report only.")
    @functools.wraps(command)
    def with_report(*passed: Any, form: str | None, outputs: tuple[Path, ...], exit_zero: bool, **rest: Any) -> None:
        check_outputs(outputs)
        outcome = command(*passed, **rest)
        deliver(outcome, form, outputs, exit_zero=exit_zero)

    return with_report  # fmt: skip


def check_outputs(outputs: tuple[Path, ...]) -> None:
    """Refuse outputs that could not be written before anything is measured."""
    from perfgate.errors import UsageError
    from perfgate.report import format_of

    for file in outputs:
        format_of(file)
        if not file.resolve().parent.is_dir():
            raise UsageError(f"--output {file}: its folder does not exist")
        if not os.access(file if file.exists() else file.resolve().parent, os.W_OK):
            raise UsageError(f"--output {file}: this user may not write there")


def deliver(outcome: Outcome, form: str | None, outputs: tuple[Path, ...], *, exit_zero: bool) -> None:
    """Print and write the outcome, and end with its exit status.

    What cannot be delivered costs neither the other reports nor a verdict that blocks. Only a status of 0 becomes 22:
    it promises that every report asked for was written.
    """
    from perfgate.report import FORMATS, format_of
    from perfgate.report.text import render_text

    terminal = sys.stdout.isatty()
    form = form or ("text" if terminal else "markdown")
    render = FORMATS[form]
    if form == "text" and terminal:
        render = functools.partial(render_text, width=shutil.get_terminal_size().columns)
    lost: list[str] = []
    with _noting(lost, "stdout"):  # first, so that a file that cannot be written costs no result
        try:
            show = command if form == "github" else click.echo  # which brackets what it did not write itself
            show(render(outcome).removesuffix("\n"))
        except BrokenPipeError:  # whoever read has seen enough; files and the exit status are still owed
            abandon(sys.stdout)
        except OSError:
            abandon(sys.stdout)
            raise
    for file in outputs:
        with _noting(lost, f"--output {file}"):
            file.write_text(FORMATS[format_of(file)](outcome), encoding="utf-8")
    if form == "github":
        with _noting(lost, "the job's summary and outputs"):
            publish(outcome)
    status = ExitStatus.PASS if exit_zero else ExitStatus(outcome.exit_status)
    if lost:
        click.echo(_undelivered(outcome, lost), err=True)
    click.get_current_context().exit(status or (ExitStatus.NOT_MEASURED if lost else status))


@contextlib.contextmanager
def _noting(lost: list[str], what: str) -> Iterator[None]:
    """Note what could not be written, and why, instead of ending with it."""
    try:
        yield
    except OSError as error:
        lost.append(f"{what}: {error.strerror or error}")


def _undelivered(outcome: Outcome, lost: list[str]) -> str:
    folder = click.get_current_context().meta.get(RUN_FOLDER)
    kept = (
        f", kept in {folder}: write the report again with perfgate judge {shlex.quote(str(folder))}" if folder else ""
    )
    verdict = f"  The verdict is {outcome.verdict} (exit status {outcome.exit_status}){kept}."
    return "\n".join([*(f"perfgate: the report could not be written to {one}" for one in lost), verdict])
