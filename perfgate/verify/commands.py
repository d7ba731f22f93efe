"""The command that says what of a run or a baseline can be trusted.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.output_options import RUNS_OPTION, complete_runs, run_named
from perfgate.errors import ExitStatus


@click.command()
@click.argument("paths", metavar="RUN|BASELINE...", nargs=-1, required=True, type=click.Path(path_type=Path),
                shell_complete=complete_runs)  # fmt: skip
@RUNS_OPTION
@click.pass_context
def verify(ctx: click.Context, paths: tuple[Path, ...], runs: Path) -> None:
    """Check what a run folder, a night or a baseline claims: digests, plan, chain, verdict, git.

    A run is its folder, the folder's name or the word latest. A line a check: ok, FAILED, or unknown where this place
    cannot tell. Ends with 2 where one failed.
    """
    from perfgate.verify.verification import verify_path

    failed = False
    for path in (run_named(word, runs) for word in paths):
        click.echo(f"{path}:")
        for check in verify_path(path):
            text = " ".join(check.text.split("\n"))  # names of files are part of it, and a line is a check
            click.echo(f"  {check.result.ljust(7)}  {check.what}: {text}")
            failed |= check.result == "FAILED"
    ctx.exit(ExitStatus.USAGE if failed else ExitStatus.PASS)
