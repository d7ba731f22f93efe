"""The commands that measure two builds: once, or as a night.

As in :mod:`perfgate.cli.main`, imports stand in the bodies.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli import completion
from perfgate.cli.baseline_commands import BASELINES_OPTION
from perfgate.cli.measuring import (
    BASE_OPTION,
    BUDGET_OPTION,
    HEAD_OPTION,
    SCENARIOS,
    measured,
    measuring,
    restore_builds,
    subjects_of,
)
from perfgate.cli.output_options import RUNS_OPTION, reported

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome

USUAL = Path("scenarios")
"""Where a scenario is looked for if none is named; ``perfgate init`` writes one there."""


@click.command()
@SCENARIOS
@BASE_OPTION
@HEAD_OPTION
@click.option(
    "--against",
    metavar="REF|baseline|FILE",
    help="A git ref: its merge base with HEAD is built as the base, the working tree as the head ([build] says how). "
    "Or measure one side and hold it against the stored baselines, or against the one in a file that ends in .json.",
)
@BASELINES_OPTION
@RUNS_OPTION
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order within pairs; drawn if not given.")
@click.option("--quick", is_flag=True, help="One trial a subject: a look at the numbers, never a verdict.")
@click.option(
    "--resume",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=completion.runs,
    metavar="RUN",
    help="Go on with the open cells of this run instead (a folder, its name, or latest); it knows its scenarios, "
    "subjects and seed. Where scenarios and subjects are given too it must be a run of these.",
)
@click.option(
    "--more",
    type=int,
    metavar="PAIRS",
    help="With --resume: look again at cells that are inconclusive at their last look, after so many pairs more.",
)
@BUDGET_OPTION
@click.pass_obj
@reported
def run(
    collector: Collector | None, folder: Path | None, more: int | None, budget_s: float, baselines: Path, **new: Any
) -> Outcome:
    """Measure two builds in interleaved pairs and judge them.

    With --base alone one side is measured, for a later comparison. Against a stored baseline the head is measured
    alone; with --base alone that is the head. A run that was stopped goes on with --resume.

    \b
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head python=B/bin/python
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head args.max_num_seqs=32
    perfgate run scenarios/cpu-tiny.yaml --against main
    perfgate run --resume latest
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate import gate
    from perfgate.report.run_folders import find_run

    check_resume(folder, more, new)
    if folder is not None:
        folder = find_run(folder, new["runs"])
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress, "budget_s": budget_s}
        scenarios, runs, word = new.pop("scenarios"), new["runs"], new.pop("against")
        said = (new.pop("base_words"), new.pop("head_words"), progress)
        if folder is not None:
            if scenarios:
                means["only"] = (scenarios, subjects_of(*said, scenarios=scenarios))
            finished = gate.resume(folder, more=more, prepare=restore_builds(progress), **means)
        else:
            stored = baselines_meant(word, baselines)
            ref = word if stored is None else None
            subjects = subjects_of(*said, ref=ref, runs=runs, scenarios=scenarios)
            if stored is not None:
                means["against"] = stored
                subjects = {"head": subjects.get("head", subjects["base"])}
            finished = gate.run(scenarios, subjects, **new, **means)
    return measured(finished)


def baselines_meant(word: str | None, folder: Path) -> Path | None:
    """The stored baselines that ``--against`` names: their folder, or the file of one; ``None`` for a git ref."""
    if word == "baseline":
        return folder
    return Path(word) if word is not None and word.endswith(".json") else None


def check_resume(folder: Path | None, more: int | None, new: dict[str, Any]) -> None:
    """Refuse a mixture of a new run's words and those that go on with an old one.

    Raises:
        UsageError: There is nothing to measure, or a word that a run folder has its own answer to.
    """
    from perfgate.errors import UsageError

    if folder is None:
        if more is not None:
            raise UsageError("--more goes on with a run", remedy="Name its folder: --resume FOLDER --more 4.")
        new["scenarios"] = new["scenarios"] or (the_scenario(USUAL),)
        return
    if new["scenarios"]:  # with their subjects: the run is held against them
        new = {**new, "base_words": (), "head_words": ()}
    words = {"base_words": "--base without a scenario", "head_words": "--head without a scenario",
             "against": "--against", "quick": "--quick"}  # fmt: skip
    given = [word for name, word in words.items() if new[name]] + ["--seed"] * (new["seed"] is not None)
    if given:
        raise UsageError(f"--resume goes on with the run's own plan and subjects: {', '.join(given)} cannot be given")


def the_scenario(folder: Path) -> Path:
    """The only scenario in a folder.

    Raises:
        UsageError: There is none, or a choice.
    """
    from perfgate.errors import UsageError

    found = sorted(file for suffix in ("yaml", "yml") for file in folder.glob(f"*.{suffix}"))
    if len(found) == 1:
        click.echo(f"perfgate: measuring {found[0]}, the only scenario here", err=True)
        return found[0]
    if not found:
        remedy = "Name scenario files, or begin with perfgate init. A run that was stopped goes on with --resume."
        raise UsageError(f"nothing to measure: {folder}/ holds no scenario", remedy=remedy)
    files = " ".join(shlex.quote(str(file)) for file in found)
    remedy = f"Name those to measure: perfgate run {shlex.quote(str(found[0]))}, or all of them."
    raise UsageError(f"which scenario? {folder}/ holds {len(found)}: {files}", remedy=remedy)


@click.command()
@SCENARIOS
@BASE_OPTION
@HEAD_OPTION
@RUNS_OPTION
@click.option("--resume", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="NIGHT",
              help="Go on with this night instead (a folder, its name, or latest); it knows the rest.")  # fmt: skip
@BUDGET_OPTION
@click.pass_obj
@reported
def nightly(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    base_words: tuple[str, ...],
    head_words: tuple[str, ...],
    runs: Path,
    folder: Path | None,
    budget_s: float,
) -> Outcome:
    """Measure the reference (--base) against itself, then the head against it, and name what may be promoted.

    Nothing is promoted: when the reference passed against itself, it is a candidate for one more visit.
    """
    from perfgate.errors import UsageError
    from perfgate.nightly import MANIFEST, candidate, resume_night, run_night
    from perfgate.report.run_folders import find_run

    if (folder is None) != bool(scenarios) or (folder is not None and (base_words or head_words)):
        raise UsageError("expected scenarios and subjects, or --resume NIGHT alone")
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress, "budget_s": budget_s}
        if folder is not None:
            finished = resume_night(find_run(folder, runs, MANIFEST), prepare=restore_builds(progress), **means)
        else:
            subjects = subjects_of(base_words, head_words, progress, runs=runs, scenarios=scenarios)
            finished = run_night(scenarios, subjects, runs=runs, **means)
    outcome = measured(finished)
    if found := candidate(finished.folder):
        words = f"perfgate baseline promote {shlex.quote(str(found))} --side base"
        click.echo(f"candidate for promotion: {words}", err=True)
    return outcome
