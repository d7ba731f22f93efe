"""``perfgate plan``: a plan in shards, one for each machine; and the options of what measures and judges them.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
import json
import secrets
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.measuring import (
    BUDGET_OPTION,
    QUIET_OPTION,
    SCENARIOS,
    Builds,
    measured,
    measuring,
    names_a_reference,
    naming_builds,
    restore_builds,
    resume_option,
)
from perfgate.cli.output_options import RUN_FOLDER, RUNS_OPTION, reported, run_named
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome
    from perfgate.project.config import Config
    from perfgate.record.shards import Assigned, MachineClass, ShardPlan
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.plan import Plan

_FILE: Any = click.Path(path_type=Path, dir_okay=False)
PLAN_OPTION = click.option("--plan", "plan_file", type=_FILE, metavar="FILE", help="What perfgate plan printed.")
ATTEMPT_OPTION = click.option(
    "--attempt", type=click.IntRange(1, 1_000_000), default=1, metavar="N",
    envvar=["PERFGATE_ATTEMPT", "GITHUB_RUN_ATTEMPT"],
    help="Of a plan and its shards: which attempt of its CI's job this is. A shard of another attempt than the "
    "plan's does not count. [default: GitHub's, or 1]",
)  # fmt: skip


def sharded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that measures ``--shard``, ``--plan``, ``--left`` and ``--attempt``; it gets the ``shard``."""

    @click.option("--shard", "shard_word", metavar="K/N", help="Measure this part of the plan of --plan alone.")
    @PLAN_OPTION
    @click.option("--left", "left_file", type=_FILE, metavar="FILE",
                  help="What perfgate plan --left printed: of the shard only what is left of it.")  # fmt: skip
    @ATTEMPT_OPTION
    @functools.wraps(command)
    def with_shard(
        *passed: Any, shard_word: str | None, plan_file: Path | None, left_file: Path | None, attempt: int, **rest: Any
    ) -> Any:
        return command(*passed, shard=assigned(shard_word, plan_file, left_file, attempt), **rest)

    return with_shard


def run_in_shards(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``perfgate run`` the same, and refuse what no part of a plan is measured with."""

    @functools.wraps(command)
    def checked(*passed: Any, shard: Assigned | None, **new: Any) -> Any:
        refused = {
            "--quick": new["quick"],
            "--preset": new["preset"],
            "--profile-only": new["exact_only"],
            "--seed": new["seed"] is not None,
            f"--against {new['against']}": names_a_reference(new["against"]),
            "--resume without a scenario": new["folder"] is not None and not new["scenarios"],
        }
        given = [option for option, is_given in refused.items() if is_given]
        if shard is not None and given:  # parts are judged together, by pairs
            raise UsageError(f"--shard measures pairs by its plan: {', '.join(given)} cannot be given")
        return command(*passed, shard=shard, **new)

    return sharded(checked)


def joining_shards(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``perfgate judge`` its ``--plan``: parts of a plan are joined, and judged together."""

    @PLAN_OPTION
    @functools.wraps(command)
    def with_plan(folders: tuple[Path, ...], plan_file: Path | None, runs: Path) -> Any:
        from perfgate.record.shards import is_shard
        from perfgate.report.run_folders import LATEST

        words = folders or (Path(LATEST),)
        alone = run_named(words[0], runs) if len(words) == 1 and plan_file is None else None
        if alone is not None and not is_shard(alone):
            return command(folders=(alone,), runs=runs)
        folder, outcome = judge_together(words, runs, plan_file)
        click.echo(f"run folder: {folder}", err=True)
        click.get_current_context().meta[RUN_FOLDER] = folder
        return outcome

    return with_plan


def assigned(word: str | None, file: Path | None, left_file: Path | None, attempt: int) -> Assigned | None:
    """The shard that ``--shard`` and ``--plan`` name, or what ``--left`` says of it; ``None`` where none was given.

    Raises:
        UsageError: One was given without the other, there is no such shard, or nothing of it is left.
        RecordError: The plan, or what is left of it, cannot be read.
    """
    from perfgate.machine.json_text import MANIFEST
    from perfgate.machine.versioned_json import read_bytes
    from perfgate.record.shards import parse_shards_left, read_shard_plan

    if word is None and file is None and left_file is None:
        return None
    if word is None or file is None:
        remedy = "Print a plan first: perfgate plan SCENARIO --shards N > plan.json"
        raise UsageError("--shard and --plan go together", remedy=remedy)
    left = parse_shards_left(read_bytes(left_file, MANIFEST), str(left_file)) if left_file is not None else None
    return read_shard_plan(file).numbered(word, left, attempt)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="SCENARIO...")
@click.option("--shards", type=click.IntRange(1, 1000), help="How many machines measure, at most.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order within pairs; drawn if not given.")
@click.option("--left", "plan_file", type=_FILE, metavar="PLAN", help="Print what of this plan SHARD... leave.")
@ATTEMPT_OPTION
@RUNS_OPTION
def plan(
    files: tuple[Path, ...], shards: int | None, seed: int | None, plan_file: Path | None, attempt: int, runs: Path
) -> None:
    """Divide the cells of scenarios into shards, one for each machine, and print them as a JSON matrix.

    Shards cost about the same by the records in --runs, else by what scenarios expect, as perfgate check prices them.
    [machines] of perfgate.toml says which machines measure which scenarios, and by which labels they are found.

    \b
    perfgate plan scenarios/*.yaml --shards 3 > plan.json
    perfgate run scenarios/*.yaml --shard 2/3 --plan plan.json --base ... --head ...
    perfgate judge shard-*/ --plan plan.json
    perfgate plan --left plan.json shard-*/
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate.fleet.joined_nights import shards_left
    from perfgate.record.shards import read_shard_plan

    if (plan_file is None) == (shards is None) or not (files or plan_file):
        raise UsageError("expected SCENARIO... --shards N, or --left PLAN SHARD...")
    if plan_file is not None:
        matrix = shards_left(read_shard_plan(plan_file), files).include
    else:
        matrix = divided(files, shards or 1, seed, runs, attempt).include
    click.echo(json.dumps({"include": [entry.model_dump(mode="json") for entry in matrix]}))


def divided(files: Sequence[Path], shards: int, seed: int | None, runs: Path, attempt: int = 1) -> ShardPlan:
    """The plan of scenario files in so many shards at most; see :func:`plan`.

    Raises:
        UsageError: Scenarios, or the classes of machines, do not go together.
    """
    from perfgate.record.shards import divide, price
    from perfgate.scenario.declaration import load

    whole, name, classes = planned([load(file) for file in files], seed)
    prices = {cell.name: price(cell, runs) for cell in whole.cells}
    return divide(whole, name, shards, prices, classes, attempt)


def planned(loaded: Sequence[LoadedScenario], seed: int | None) -> tuple[Plan, str, dict[str, MachineClass]]:
    """The whole plan of scenarios, a name for the run of it, and the class of machines of each cell.

    Raises:
        UsageError: Scenarios, or the classes of machines, do not go together.
    """
    from perfgate.project.config import load_config
    from perfgate.record.keeping import run_name
    from perfgate.scenario.plan import make_plan

    whole = make_plan(tuple(loaded), secrets.randbits(32) if seed is None else seed)
    config = load_config()
    of_scenario = {declaration.scenario.name: class_of(config, declaration) for declaration in loaded}
    return whole, run_name(loaded), {cell.name: of_scenario[cell.scenario] for cell in whole.cells}


def class_of(config: Config, loaded: LoadedScenario) -> MachineClass:
    """The class that measures a scenario: the only one whose patterns name its file.

    Raises:
        UsageError: None does though there are classes, or several do.
    """
    from perfgate.record.shards import MachineClass

    if not config.machines:
        return MachineClass()
    named = config.machines_of(loaded.file)
    if len(named) != 1:
        names = " and ".join(named) or "none"
        remedy = "Name the file in scenarios of one table [machines.NAME]; each cell is measured once."
        raise UsageError(f"machines that measure {loaded.file}: {names}", where=str(config.file), remedy=remedy)
    return MachineClass(named[0], config.machines[named[0]].labels)


def judge_together(words: Sequence[Path], runs: Path, plan_file: Path | None) -> tuple[Path, Outcome]:
    """Join the shards of a plan, or the nights of its shards, and judge them; the folder of that, and the outcome.

    Raises:
        PerfgateError: See :func:`perfgate.fleet.joining.join` and :func:`perfgate.fleet.joined_nights.join_nights`.
    """
    from perfgate import gate
    from perfgate.fleet.joined_nights import join_nights
    from perfgate.fleet.joining import agreed_in, join
    from perfgate.fleet.nightly import MANIFEST, judge_night
    from perfgate.record.shards import read_shard_plan

    declared = read_shard_plan(plan_file) if plan_file is not None else None
    runs.mkdir(parents=True, exist_ok=True)
    folders = [runs / word if not word.exists() and (runs / word).exists() else word for word in words]
    nights = any([*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")] for folder in folders)
    if nights and declared is None:
        raise UsageError("nights are joined by their plan", remedy="Name what perfgate plan printed: --plan plan.json")
    if nights and declared is not None:
        folder = join_nights(folders, runs, declared)
        return folder, judge_night(folder)
    folder = join(folders, runs, agreed_in(declared) if declared else None)
    return folder, gate.judge_folder(folder)


@click.command()
@SCENARIOS
@naming_builds
@resume_option("NIGHT", "this night instead (a folder, its name, or latest); it knows the rest.")
@BUDGET_OPTION
@sharded
@QUIET_OPTION
@click.pass_obj
@reported
def nightly(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    builds: Builds,
    folder: Path | None,
    budget_s: float,
    shard: Assigned | None,
) -> Outcome:
    """Measure the reference (--base) against itself, then the head against it, and name what may be promoted.

    Where perfgate.toml names an anchor, both are then measured beside it. Nothing is promoted: when the reference
    passed against itself, it is a candidate for one more visit, and the head one more night of its drift.
    """
    from perfgate.fleet.nightly import MANIFEST, candidate, night_of_the_head, read_night, resume_night, run_night
    from perfgate.report.run_folders import find_run

    if (folder is None) != bool(scenarios) or (folder is not None and (builds.base or builds.head)):
        raise UsageError("expected scenarios and subjects, or --resume NIGHT alone")
    if folder is not None and shard is not None:
        raise UsageError("--resume goes on with the night's own shard: --shard cannot be given")
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress, "budget_s": budget_s}
        if folder is not None:
            night = find_run(folder, builds.runs, MANIFEST)
            finished = resume_night(night, prepare=partial(restore_builds, progress), **means)
        else:
            subjects = builds.subjects(progress, scenarios)
            means |= {"anchor": builds.anchor(progress), "runs": builds.runs, "shard": shard}
            finished = run_night(scenarios, subjects, **means)
    outcome = measured(finished)
    if reference := candidate(finished.folder):
        side = "" if read_night(finished.folder).anchor else " --side base"
        promote = f"perfgate baseline promote {shlex.quote(str(reference))}{side}"
        click.echo(f"candidate for promotion: {promote}", err=True)
    if head := night_of_the_head(finished.folder):
        promote = f"perfgate baseline promote {shlex.quote(str(head))} --baselines heads --reason nightly"
        click.echo(f"a night of the head: {promote}", err=True)
    return outcome
