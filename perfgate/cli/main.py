"""The command line: thin commands over :mod:`perfgate.gate`; results on stdout, progress on stderr.

A command is imported when it is called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from perfgate import __version__, rooms
from perfgate.cli.outlet import Outlet, outlets
from perfgate.errors import ExitStatus, PerfgateError, ScenarioError, stems_from_interrupt


class _Commands(click.Group):
    """Imports a command when it is called, and turns perfgate's errors into a message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return sorted(rooms.entries("commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in rooms.entries("commands") and not rooms.home("commands", cmd_name):
            return None
        command: click.Command = rooms.bring(rooms.entry("commands", cmd_name)["run"])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        commands = rooms.entries("commands")
        names = sorted(commands)
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, click.Command(name, help=commands[name]["help"]).get_short_help_str(room)) for name in names]
            )

    def main(self, *words: Any, **options: Any) -> Any:
        with outlets():
            try:
                rooms.tables()  # which the list of commands is made of
            except PerfgateError as error:
                click.echo(f"perfgate: {error}", err=True)
                sys.exit(error.exit_status)
            return super().main(*words, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            returned = super().invoke(ctx)
        except PerfgateError as error:
            code = f"{error.code}: " if error.code else ""
            click.echo(error if isinstance(error, ScenarioError) else f"perfgate: {code}{error}", err=True)
            ctx.exit(error.exit_status)
        except OSError as error:
            location = f"{error.filename}: " if error.filename else ""
            click.echo(f"perfgate: {location}{error.strerror or error}", err=True)
            ctx.exit(ExitStatus.NOT_MEASURED)
        except (Exception, KeyboardInterrupt) as error:
            if not stems_from_interrupt(error):
                raise
            click.echo("perfgate: interrupted", err=True)
            ctx.exit(ExitStatus.INTERRUPTED)
        if isinstance(sys.stdout, Outlet) and sys.stdout.unread:  # it ended without a status of its own
            ctx.exit(ExitStatus.UNREAD)
        return returned


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfgate")
def main() -> None:
    """Did decode get slower, where, and how sure are we?

    perfgate measures two builds of vLLM in interleaved pairs of fresh engines and decides with declared error rates.

    \b
    Exit status: 0 pass, 10 regressed, 20 inconclusive or advisory,
    21 not comparable, 22 not measured, 2 usage or scenario error,
    1 internal error, 130 interrupted or out of budget.
    """  # noqa: D301 (click reads a real backspace: keep the lines)
