"""The command line: thin commands over :mod:`perfgate.gate`; results on stdout, progress on stderr.

A command is imported when it is called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from perfgate import __version__
from perfgate.cli.outlet import Outlet, outlets
from perfgate.errors import ExitStatus, PerfgateError, ScenarioError, stems_from_interrupt

COMMANDS: Final = {
    "baseline": ("baseline_commands:baseline",
        "What a build took on one class of machines, visit by visit, to hold later builds against."),
    "bisect": ("bisecting:bisect", "Find the commit that made a metric worse, between a good commit and a bad one."),
    "check": ("check:check", "Check scenario files; show what a run of each would measure, cost and detect."),
    "clean": ("machine_commands:clean",
        "End the engines that killed runs left behind; touches nothing that is not perfgate's."),
    "clocks": ("machine_commands:clocks", "Show the clocks of GPUs, and undo locks that killed runs left."),
    "compare": ("results:compare", "Compare two runs or records, or the two sides of a CSV."),
    "counters": ("profiles:counters",
        "Print what ncu counted, kernel by kernel: each counter in words, and how far the kernel is from its roof."),
    "doctor": ("machine_commands:doctor",
        "Find out whether this machine can measure, and say how to fix what is missing."),
    "drill": ("drilling:drill",
        "Test the gate itself: run a build against itself, and against itself with plants of known size."),
    "envelope": ("envelope_commands:envelope",
        "The kernels that a decode step may run: learn them from a build, check another against them."),
    "explain": ("results:explain",
        "Say why a run has its verdict, step by step; print the page of a reason code, or the list of all codes."),
    "github": ("github_commands:github",
        "The steps of a GitHub job: prepare, measure, report, enforce; and the comment on the pull request."),
    "history": ("history_commands:history",
        "Write pages of how each metric moved: over days and builds, beside an anchor, with the changes found."),
    "init": ("init:init",
        "Write what a repository begins with: a scenario, perfgate.toml, GitHub workflows, the runner's page."),
    "judge": ("results:judge",
        "Judge a run again from its records, the latest one if none is named; needs no engine and no GPU."),
    "kernels": ("profiles:kernels", "Print what decode steps run, role by role and kernel by kernel."),
    "list": ("results:list_runs",
        "List the runs, the newest first: when each began, what it measured and its verdict."),
    "nightly": ("run_commands:nightly",
        "Measure the reference (--base) against itself, then the head against it, and name what may be promoted."),
    "plan": ("planning:plan",
        "Divide the cells of scenarios into shards, one for each machine, and print them as a JSON matrix."),
    "profile": ("exact_profiles:profile",
        "What repeats exactly in a decode step: keep it of one build, check another against it in one trial a kind."),
    "report": ("results:report",
        "Write a run, the latest one if none is named, as one HTML file: the verdict, the evidence and the cause."),
    "run": ("run_commands:run",
        "Measure builds in interleaved pairs and judge them: a base and a head, or a base and several heads."),
    "schema": ("results:schema",
        "Print the JSON Schema (draft-07) of scenario files, perfgate.toml, verdict.json or what doctor prints."),
    "verify": ("verify:verify",
        "Check what a run folder, a night or a baseline claims: digests, plan, chain, verdict, git."),
}  # fmt: skip
"""By name: the module below :mod:`perfgate.cli` with its attribute, and the first sentence of the command's help."""


class _Commands(click.Group):
    """Imports a command when it is called, and turns perfgate's errors into a message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"perfgate.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, click.Command(name, help=COMMANDS[name][1]).get_short_help_str(room)) for name in names]
            )

    def main(self, *words: Any, **options: Any) -> Any:
        with outlets():
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
