"""What commands that end with an outcome have in common: where runs lie, how the report is shown, the exit status.

As in :mod:`perfgate.cli`, imports stand where they are needed, so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli_github import publish

if TYPE_CHECKING:
    from perfgate.outcome import Outcome

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


def deliver(outcome: Outcome, form: str | None, outputs: tuple[Path, ...], *, exit_zero: bool) -> None:
    """Print and write the outcome, and end with its exit status."""
    from perfgate.report import FORMATS, format_of

    form = form or ("text" if sys.stdout.isatty() else "markdown")
    try:  # first, so that a file that cannot be written costs no result
        click.echo(FORMATS[form](outcome), nl=False)
    except BrokenPipeError:  # whoever read has seen enough; files and the exit status are still owed
        leave_pipe()
    for file in outputs:
        file.write_text(FORMATS[format_of(file)](outcome), encoding="utf-8")
    if form == "github":
        publish(outcome)
    click.get_current_context().exit(0 if exit_zero else outcome.exit_status)


def leave_pipe() -> None:
    """Let nothing more be written to a closed pipe, not even when the interpreter flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
