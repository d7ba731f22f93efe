"""``perfgate init``: the questions that a new repository is asked, and what it is told.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.cli.scaffold import Answers, Done, StarterFile


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--scenario", metavar="NAME", help="cpu-tiny or llama-8b-decode; by default what fits this machine.")
@click.option("--python", metavar="PATH", help="The interpreter that holds vLLM.  [default: ~/engine/bin/python]")
@click.option(
    "--action",
    metavar="OWNER/perfgate@COMMIT",
    help="The action that workflows use; by default the commit that this perfgate was installed from.",
)
@click.option("--labels", metavar="A,B", help="Labels of the runner that measures.  [default: self-hosted,linux,gpu]")
@click.option("--pre-push", is_flag=True, help="Also install the git hook that checks the scenarios of a push.")
@click.option("--yes", is_flag=True, help="Ask nothing, take the defaults; so it is without a terminal, too.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def init(folder: Path, *, pre_push: bool, yes: bool, force: bool, **given: str | None) -> None:
    """Write what a repository begins with: a scenario, perfgate.toml, GitHub workflows, the runner's page.

    What is there already is left as it is.
    """
    from perfgate.cli import scaffold

    answer = partial(_answer, not yes and sys.stdin.isatty())
    chosen = answer("Scenario", given["scenario"], _fitting)
    if chosen not in scaffold.SCENARIOS:
        raise UsageError(f"--scenario {chosen}: expected one of {', '.join(scaffold.SCENARIOS)}")
    python = answer("Interpreter that holds vLLM", given["python"], lambda: scaffold.ENGINE)
    question = "perfgate's action, OWNER/perfgate@COMMIT (empty: later)"
    action = answer(question, given["action"], scaffold.installed_action)
    labels = answer("Labels of the runner that measures", given["labels"], lambda: ",".join(scaffold.LABELS))
    answers = scaffold.Answers(chosen, python, action, _words(labels) or scaffold.LABELS, pre_push)
    done = list(scaffold.write_files(scaffold.starter_files(folder, answers), force=force))
    for file, what in done:
        click.echo(f"{what:<8} {file.path}" + (" (there already)" if what == "left" else ""))
    click.echo("\nnext:")
    for number, step in enumerate(_next(folder, answers, done), 1):
        click.echo(f"  {number}. {step}")


def _answer(asks: bool, question: str, given: str | None, default: Callable[[], str]) -> str:  # noqa: FBT001
    if given is not None:
        return given
    return str(click.prompt(question, default=default(), err=True)) if asks else default()


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _fitting() -> str:
    """The scenario that this machine can run: a GPU's where the driver shows one."""
    from perfgate.machine.accelerator import connect

    nvml = connect()
    if nvml is None:
        return "cpu-tiny"
    with nvml:
        return "llama-8b-decode" if nvml.gpus() else "cpu-tiny"


def _next(folder: Path, answers: Answers, done: list[tuple[StarterFile, Done]]) -> tuple[str, str, str]:
    """How to get a verdict, how to compare a branch, how to have it on GitHub."""
    from perfgate.cli.scaffold import not_ignored

    scenario = f"scenarios/{answers.scenario}.yaml"
    engine = folder.absolute() / Path(answers.python).expanduser()
    missing = f"put an engine at {answers.python}, then " if "/" in answers.python and not engine.exists() else ""
    lines = " and ".join(not_ignored(folder, answers))
    ignore = f" (with {lines} in .gitignore)" if lines else ""
    build = "" if any("\n[build]" in file.text for file, _ in done) else "fill in [build] in perfgate.toml; "
    pin = "" if answers.action else "perfgate init --action OWNER/perfgate@COMMIT completes the workflows; "
    return (
        f"{missing}perfgate run {scenario}: a build against itself, to see it pass",
        f"{build}commit these files{ignore}; perfgate run {scenario} --against main compares your branch",
        f"{pin}.github/perfgate-runner.md sets up the runner",
    )
