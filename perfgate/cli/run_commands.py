"""``perfgate run``: measure builds beside each other, and judge them.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate import rooms
from perfgate.cli.measuring import (
    BUDGET_OPTION,
    GPUS_OPTION,
    PRESET_OPTION,
    QUIET_OPTION,
    SCENARIOS,
    Builds,
    as_preset,
    how_to_measure,
    measured,
    measuring,
    names_a_reference,
    naming_builds,
    restore_builds,
    resume_option,
    scenarios_or_usual,
)
from perfgate.cli.output_options import reported
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome
    from perfgate.record.shards import Assigned


@click.command()
@SCENARIOS
@naming_builds
@click.option(
    "--against",
    metavar="REF|baseline|FILE",
    help="A git ref: its merge base with HEAD is built as the base, the working tree as the head ([build] says how). "
    "Or measure one side and hold it against the stored baselines, or against the one in a file that ends in .json.",
)
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
@QUIET_OPTION
@click.pass_obj
@reported
@rooms.with_options("run")
def run(
    collector: Collector | None,
    scenarios: tuple[Path, ...],
    builds: Builds,
    folder: Path | None,
    more: int | None,
    shard: Assigned | None = None,
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

    if folder is not None:
        check_resume(scenarios, builds, new)
        folder = find_run(folder, builds.runs, to_resume=True)
    elif more is not None:
        raise UsageError("--more goes on with a run", remedy="Name its folder: --resume FOLDER --more 4.")
    else:
        scenarios = scenarios_or_usual(scenarios)
    with measuring() as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress, "shard": shard}
        means |= {name: new[name] for name in ("budget_s", "gpus")}
        if folder is not None:
            if scenarios:
                means["only"] = (scenarios, builds.with_heads(progress, scenarios))
            return measured(gate.resume(folder, more=more, prepare=partial(restore_builds, progress), **means))
        if names_a_reference(new["against"]):
            raise rooms.missing("baseline", f"--against {new['against']}")
        subjects = builds.with_heads(progress, scenarios, ref=new["against"])
        loaded = as_preset(scenarios, new["preset"])
        return measured(gate.run(loaded, subjects, runs=builds.runs, **how_to_measure(new), **means))


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
