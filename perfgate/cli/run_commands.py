"""The commands that measure two builds: once, or as a night.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.baseline_commands import BASELINES_OPTION
from perfgate.cli.clustering import measured_on_cluster, on_clusters
from perfgate.cli.exact_profiles import PROFILES_OPTION
from perfgate.cli.measuring import (
    BUDGET_OPTION,
    GPUS_OPTION,
    PRESET_OPTION,
    QUIET_OPTION,
    SCENARIOS,
    Builds,
    as_preset,
    measured,
    measuring,
    naming_builds,
    restore_builds,
    resume_option,
)
from perfgate.cli.output_options import reported
from perfgate.cli.planning import assigned, sharded
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.gate import Finished
    from perfgate.judge.outcome import Outcome
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.subject import Subject

USUAL = Path("scenarios")
"""Where a scenario is looked for if none is named; ``perfgate init`` writes one there."""


@click.command()
@SCENARIOS
@naming_builds
@click.option(
    "--against",
    metavar="REF|baseline|FILE",
    help="A git ref: its merge base with HEAD is built as the base, the working tree as the head ([build] says how). "
    "Or measure one side and hold it against the stored baselines, or against the one in a file that ends in .json.",
)
@BASELINES_OPTION
@PROFILES_OPTION
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order within pairs; drawn if not given.")
@click.option("--quick", is_flag=True, help="One trial a subject: a look at the numbers, never a verdict.")
@PRESET_OPTION
@click.option(
    "--profile-only",
    "exact_only",
    is_flag=True,
    help="One pair of each kind but timed ones: only what repeats exactly is judged, in a minute or two.",
)
@click.option(
    "--host-profile",
    is_flag=True,
    help="One pair of trials more, which tells in which functions the head's host takes longer; it judges nothing.",
)
@resume_option(
    "RUN",
    "the open cells of this run instead (a folder, its name, or latest); it knows its scenarios, "
    "subjects and seed. Where scenarios and subjects are given too it must be a run of these.",
)
@click.option(
    "--more",
    type=int,
    metavar="PAIRS",
    help="With --resume: look again at cells that are inconclusive at their last look, after so many pairs more.",
)
@BUDGET_OPTION
@GPUS_OPTION
@sharded
@on_clusters
@QUIET_OPTION
@click.pass_obj
@reported
def run(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    builds: Builds,
    folder: Path | None,
    more: int | None,
    **new: Any,
) -> Outcome:
    """Measure builds in interleaved pairs and judge them: a base and a head, or a base and several heads.

    With --base alone one side is measured, for a later comparison. Against a stored baseline the head is measured
    alone; with --base alone that is the head. A run that was stopped goes on with --resume.

    \b
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head python=B/bin/python
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head args.max_num_seqs=32
    perfgate run scenarios/cpu-tiny.yaml --head a:args.max_num_seqs=16 --head b:args.max_num_seqs=32
    perfgate run scenarios/cpu-tiny.yaml --against main
    perfgate run --resume latest
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate import gate
    from perfgate.report.run_folders import find_run

    if new["on"] or new["attach"]:
        options = {**new, "folder": folder, "more": more}
        return measured(measured_on_cluster(scenarios, builds, options, collector, partial(the_scenario, USUAL)))
    shard = assigned(new["shard_word"], new["plan_file"], new["left_file"], new["attempt"])
    if shard is not None:
        check_shard(new, resumed_alone=folder is not None and not scenarios)
    if folder is not None:
        check_resume(scenarios, builds, new)
        folder = find_run(folder, builds.runs, to_resume=True)
    elif more is not None:
        raise UsageError("--more goes on with a run", remedy="Name its folder: --resume FOLDER --more 4.")
    else:
        scenarios = scenarios or (the_scenario(USUAL),)
    begun_s = time.monotonic()
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress}
        means |= {name: new[name] for name in ("budget_s", "gpus")} | {"shard": shard}
        if folder is not None:
            if scenarios:
                means["only"] = (scenarios, builds.with_heads(progress, scenarios))
            finished = gate.resume(folder, more=more, prepare=partial(restore_builds, progress), **means)
            if not scenarios:  # a run of named builds has no pairs beside it, and a folder may be somebody else's
                finished = resumed_pairs(finished, means, begun_s)
        else:
            finished = measured_anew(scenarios, builds, new, means)
    return measured(finished)


def measured_anew(scenarios: tuple[Path, ...], builds: Builds, new: dict[str, Any], means: dict[str, Any]) -> Finished:
    """Begin a run; where visits of a baseline say that a head would regress, its pairs too."""
    from perfgate import gate

    begun_s = time.monotonic()
    progress = means["progress"]
    stored = baselines_meant(new["against"], new["baselines"])
    if stored is not None and new["exact_only"]:
        remedy = "Hold the calls against a profile: perfgate profile check SCENARIO --head ..."
        raise UsageError("--profile-only has no times to hold against a baseline", remedy=remedy)
    subjects = builds.with_heads(progress, scenarios, ref=new["against"] if stored is None else None)
    base = subjects.get("base") if builds.names_a_base(subjects) else None
    if stored is not None:
        subjects = beside_the_anchor(subjects, builds.anchor(progress))
    folder_of_profiles = new["profiles"] if stored is not None and new["profiles"].is_dir() else None
    how = {name: new[name] for name in ("seed", "quick", "exact_only", "host_profile")}
    how["quick"] |= new["preset"] == "quick"
    how["host_profile"] |= new["preset"] == "comprehensive"
    how |= {"against": stored, "profiles": folder_of_profiles, "runs": builds.runs}
    loaded = as_preset(scenarios, new["preset"])
    finished = gate.run(loaded, subjects, **how, **means)
    left_s = means["budget_s"] - (time.monotonic() - begun_s)
    return pairs_beside_visits(finished, loaded, base, builds, {**means, "budget_s": left_s})


def resumed_pairs(finished: Finished, means: dict[str, Any], begun_s: float) -> Finished:
    """Go on with the pairs of a run against a baseline that were begun and are open."""
    from perfgate import gate
    from perfgate.baseline.confirmation import left_to_pairs
    from perfgate.record.nested_pairs import run_of_pairs

    pairs = run_of_pairs(finished.folder)
    if pairs is None:
        if left_to_pairs(finished.outcome):
            means["progress"]("warning: pairs decide what would regress: perfgate run SCENARIO --base ... --head ...")
        return finished
    left_s = means["budget_s"] - (time.monotonic() - begun_s)
    try:
        gate.resume(pairs, prepare=partial(restore_builds, means["progress"]), **{**means, "budget_s": left_s})
    finally:
        outcome = gate.judge_folder(finished.folder)
    return gate.Finished(finished.folder, outcome)


def pairs_beside_visits(
    finished: Finished,
    loaded: Sequence[LoadedScenario],
    base: Subject | None,
    builds: Builds,
    means: dict[str, Any],
) -> Finished:
    """Decide by pairs what would regress by visits, where its base was named or can be built."""
    from perfgate.baseline.confirmation import left_to_pairs
    from perfgate.confirming import in_pairs, promoted, words_of

    if not (left := left_to_pairs(finished.outcome)):
        return finished
    wanted = {words_of(build) for build in promoted(finished, left)}
    if base is None and len(wanted) == 1 and (words := wanted.pop()):
        base = replace(builds, base=words, head=()).subjects(means["progress"])["base"]
    if base is None:
        names = ", ".join(dict.fromkeys(cell.name for cell in left))
        text = f"warning: {names} would regress by the baseline's visits; pairs decide"
        means["progress"](
            f"{text}: perfgate run {' '.join(shlex.quote(str(one.file)) for one in loaded)} --base ... --head ..."
        )
        return finished
    taken = {name: means[name] for name in ("collector", "progress", "gpus", "budget_s")}
    return in_pairs(finished, loaded, base, **taken)


def baselines_meant(word: str | None, folder: Path) -> Path | None:
    """The stored baselines that ``--against`` names: their folder, or the file of one; ``None`` for a git ref."""
    if word == "baseline":
        return folder
    return Path(word) if word is not None and word.endswith(".json") else None


def beside_the_anchor(subjects: dict[str, Subject], anchor: Subject | None) -> dict[str, Subject]:
    """What is measured for stored baselines: the heads, or the only build that was named, beside the anchor if any.

    Raises:
        UsageError: There are several heads, and no anchor that they are measured beside.
    """
    heads = {name: subject for name, subject in subjects.items() if name != "base"} or {"head": subjects["base"]}
    if anchor is not None:
        return {"base": anchor, **heads}
    if len(heads) > 1:
        remedy = "Declare [subjects.anchor] in perfgate.toml, or measure each head in a run of its own."
        raise UsageError(f"without an anchor there is nothing to measure {', '.join(heads)} beside", remedy=remedy)
    return heads


def check_resume(scenarios: tuple[Path, ...], builds: Builds, new: dict[str, Any]) -> None:
    """Refuse what only a new run can be told beside ``--resume``.

    Raises:
        UsageError: An option that a run folder has its own answer to. With scenarios builds may be named: the run is
            held against both.
    """
    refused = {
        "--base without a scenario": builds.base and not scenarios,
        "--head without a scenario": builds.head and not scenarios,
        "--against": new["against"],
        "--quick": new["quick"],
        "--preset": new["preset"],
        "--profile-only": new["exact_only"],
        "--host-profile": new["host_profile"],
        "--seed": new["seed"] is not None,
    }
    if given := [option for option, is_given in refused.items() if is_given]:
        raise UsageError(f"--resume goes on with the run's own plan and subjects: {', '.join(given)} cannot be given")


def check_shard(new: dict[str, Any], *, resumed_alone: bool) -> None:
    """Refuse what no part of a plan is measured with: parts are judged together, by pairs.

    Raises:
        UsageError: Such an option was given.
    """
    refused = {
        "--quick": new["quick"],
        "--preset": new["preset"],
        "--profile-only": new["exact_only"],
        "--seed": new["seed"] is not None,
        f"--against {new['against']}": baselines_meant(new["against"], new["baselines"]) is not None,
        "--resume without a scenario": resumed_alone,
    }
    if given := [option for option, is_given in refused.items() if is_given]:
        raise UsageError(f"--shard measures pairs by its plan: {', '.join(given)} cannot be given")


def the_scenario(folder: Path) -> Path:
    """The only scenario in a folder.

    Raises:
        UsageError: There is none, or a choice.
    """
    scenarios = sorted(file for suffix in ("yaml", "yml") for file in folder.glob(f"*.{suffix}"))
    if len(scenarios) == 1:
        click.echo(f"perfgate: measuring {scenarios[0]}, the only scenario here", err=True)
        return scenarios[0]
    if not scenarios:
        remedy = "Name scenario files, or begin with perfgate init. A run that was stopped goes on with --resume."
        raise UsageError(f"nothing to measure: {folder}/ holds no scenario", remedy=remedy)
    files = " ".join(shlex.quote(str(file)) for file in scenarios)
    remedy = f"Name those to measure: perfgate run {shlex.quote(str(scenarios[0]))}, or all of them."
    raise UsageError(f"which scenario? {folder}/ holds {len(scenarios)}: {files}", remedy=remedy)


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
    **part: Any,
) -> Outcome:
    """Measure the reference (--base) against itself, then the head against it, and name what may be promoted.

    Where perfgate.toml names an anchor, both are then measured beside it. Nothing is promoted: when the reference
    passed against itself, it is a candidate for one more visit, and the head one more night of its drift.
    """
    from perfgate.nightly import MANIFEST, candidate, night_of_the_head, read_night, resume_night, run_night
    from perfgate.report.run_folders import find_run

    if (folder is None) != bool(scenarios) or (folder is not None and (builds.base or builds.head)):
        raise UsageError("expected scenarios and subjects, or --resume NIGHT alone")
    shard = assigned(part["shard_word"], part["plan_file"], part["left_file"], part["attempt"])
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
