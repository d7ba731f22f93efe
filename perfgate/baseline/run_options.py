"""``perfgate run --against baseline``: heads held against stored visits, and pairs where one would regress by them.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.baseline.commands import BASELINES_OPTION
from perfgate.baseline.profile_commands import PROFILES_OPTION
from perfgate.cli.measuring import (
    Builds,
    as_preset,
    how_to_measure,
    measured,
    measuring,
    names_a_reference,
    restore_builds,
    scenarios_or_usual,
    signals_as_interrupt,
)
from perfgate.cli.output_options import RUN_FOLDER
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.gate import Finished
    from perfgate.judge.outcome import Outcome
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.subject import Subject


def against_baselines(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Give ``perfgate run`` its ``--baselines`` and ``--profiles``, and ``--against`` its baselines."""

    @BASELINES_OPTION
    @PROFILES_OPTION
    @functools.wraps(command)
    def held_against(
        collector: Any, scenarios: tuple[Path, ...], builds: Builds, baselines: Path, profiles: Path, **new: Any
    ) -> Outcome:
        begun_s = time.monotonic()
        if new["folder"] is None and new["more"] is None and names_a_reference(new["against"]):
            stored = baselines if new["against"] == "baseline" else Path(new["against"])
            scenarios = scenarios_or_usual(scenarios)
            with measuring() as progress:
                means = {"collector": collector, "progress": progress, "budget_s": new["budget_s"], "gpus": new["gpus"]}
                return measured(measured_against(stored, profiles, scenarios, builds, new, means))
        if new["folder"] is None or scenarios:
            return command(collector, scenarios=scenarios, builds=builds, **new)
        # A run of named builds has no pairs beside it, and a folder may be somebody else's.
        from perfgate.gate import Finished

        with signals_as_interrupt():  # between the run and its pairs, too
            outcome = command(collector, scenarios=scenarios, builds=builds, **new)
            finished = Finished(click.get_current_context().meta[RUN_FOLDER], outcome)
            with measuring() as progress:
                means = {"collector": collector, "progress": progress, "gpus": new["gpus"]}
                means["budget_s"] = new["budget_s"] - (time.monotonic() - begun_s)
                return resumed_pairs(finished, means)

    return held_against


def measured_against(
    stored: Path,
    profiles: Path,
    scenarios: tuple[Path, ...],
    builds: Builds,
    new: dict[str, Any],
    means: dict[str, Any],
) -> Finished:
    """Begin a run against baselines; where their visits say that a head would regress, its pairs too.

    ``stored`` is a folder of baselines, or the file of one; ``new`` are the other options of ``perfgate run``, and
    ``means`` those of :func:`perfgate.gate.run`. A folder of profiles counts where it is there.

    Raises:
        UsageError: No verdict of a baseline could rest on such a run.
    """
    from perfgate import gate

    begun_s, progress = time.monotonic(), means["progress"]
    if new["exact_only"]:
        remedy = "Hold the calls against a profile: perfgate profile check SCENARIO --head ..."
        raise UsageError("--profile-only has no times to hold against a baseline", remedy=remedy)
    subjects = builds.with_heads(progress, scenarios)
    base = subjects.get("base") if builds.names_a_base(subjects) else None
    subjects = beside_the_anchor(subjects, builds.anchor(progress))
    how = {**how_to_measure(new), "against": stored, "profiles": profiles if profiles.is_dir() else None}
    loaded = as_preset(scenarios, new["preset"])
    finished = gate.run(loaded, subjects, runs=builds.runs, **how, **means)
    left_s = means["budget_s"] - (time.monotonic() - begun_s)
    return pairs_beside_visits(finished, loaded, base, builds, {**means, "budget_s": left_s})


def resumed_pairs(finished: Finished, means: dict[str, Any]) -> Outcome:
    """Go on with the pairs of a run against a baseline that were begun and are open."""
    from perfgate import gate
    from perfgate.baseline.confirmation import left_to_pairs
    from perfgate.record.nested_pairs import run_of_pairs

    pairs = run_of_pairs(finished.folder)
    if pairs is None:
        if left_to_pairs(finished.outcome):
            means["progress"]("warning: pairs decide what would regress: perfgate run SCENARIO --base ... --head ...")
        return finished.outcome
    try:
        gate.resume(pairs, prepare=partial(restore_builds, means["progress"]), **means)
    finally:
        outcome = gate.judge_folder(finished.folder)
    return outcome


def pairs_beside_visits(
    finished: Finished,
    loaded: Sequence[LoadedScenario],
    base: Subject | None,
    builds: Builds,
    means: dict[str, Any],
) -> Finished:
    """Decide by pairs what would regress by visits, where its base was named or can be built."""
    from perfgate.baseline.confirmation import left_to_pairs
    from perfgate.baseline.confirming import in_pairs, promoted, words_of

    if not (left := left_to_pairs(finished.outcome)):
        return finished
    wanted = {words_of(build) for build in promoted(finished, left)}
    if base is None and len(wanted) == 1 and (words := wanted.pop()):
        base = replace(builds, base=words, head=()).subjects(means["progress"])["base"]
    if base is None:
        names = ", ".join(dict.fromkeys(cell.name for cell in left))
        command = shlex.join(["perfgate", "run", *(str(scenario.file) for scenario in loaded)])
        text = f"warning: {names} would regress by the baseline's visits; pairs decide"
        means["progress"](f"{text}: {command} --base ... --head ...")
        return finished
    return in_pairs(finished, loaded, base, **means)


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
