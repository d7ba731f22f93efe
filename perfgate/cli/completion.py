"""What a shell is offered at the Tab key beside commands, options and files: subjects, runs, reason codes.

Slow imports are in the bodies: a shell waits for the answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfgate.errors import UsageError

if TYPE_CHECKING:
    import click


def subjects(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The subjects of ``perfgate.toml``, and the keys of those that are written out."""
    from perfgate.cli.output_options import subject_tables

    try:
        named = [*subject_tables()]
    except UsageError:  # check says what is wrong with it
        named = []
    return [word for word in (*named, "python=", "path=", "env.", "args.", "ref=") if word.startswith(begun)]


def runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The word for the newest run, and the names of all of them, the newest first."""
    from perfgate.cli.output_options import RUNS, in_project
    from perfgate.report.run_folders import LATEST, list_runs

    names = [run.name for run in list_runs(Path(context.params.get("runs") or in_project(RUNS)))]
    return [word for word in (LATEST, *names) if word.startswith(begun)]


def runs_and_codes(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The runs, then the reason codes."""
    from perfgate.reasons import REASONS

    return [*runs(context, parameter, begun), *(code for code in REASONS if code.startswith(begun))]
