"""``perfgate drill``: is the gate still able to see, and does it stay silent where there is nothing.

Slow imports are in the bodies, as in :mod:`perfgate.cli.results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from perfgate.cli.measuring import BASE_OPTION, BUDGET_OPTION, QUIET_OPTION, Builds, measuring, resume_option
from perfgate.cli.output_options import RUNS_OPTION, check_outputs, format_option, show
from perfgate.errors import ExitStatus, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.drill.plants import Plant

PLANTS = Path("drills")  # where the catalogue is, unless another folder is named


@click.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@BASE_OPTION
@click.option("--same-build", type=click.IntRange(0, 1000), default=4, show_default=True,
              help="Runs of the base against itself.")  # fmt: skip
@click.option("--plant", "plants", multiple=True, metavar="NAME[=SIZE,...]",
              help="Only this plant of the catalogue, at these sizes, JSON for an engine argument; may be given "
              "several times.")  # fmt: skip
@click.option("--no-plants", is_flag=True, help="Only the build against itself.")
@click.option("--catalogue", type=click.Path(path_type=Path, file_okay=False), default=PLANTS, show_default=True,
              help="Folder of plants.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**62), help="Seed of the order within pairs; drawn if not given.")
@resume_option("DRILL", "this campaign instead (a folder, its name, or latest); one that is over is shown again.")
@click.option("--only", multiple=True, metavar="EXERCISE", help="With --resume only: nothing but this exercise.")
@click.option("--pool", "pool", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="BOARD",
              help="Count the runs of this board.json too, if it is of this scenario and class of machines; those "
              "beside the campaign are counted anyway.")  # fmt: skip
@click.option("--replay", "replays", multiple=True, type=click.Path(path_type=Path), metavar="RECORDINGS",
              help="Measure nothing: try the rule on recorded pairs instead, of a run folder, a folder of them, or a "
              "CSV; may be given several times.")  # fmt: skip
@click.option("--draws", type=click.IntRange(1, 1_000_000), default=2000, show_default=True,
              help="With --replay only: runs drawn for each true slowdown.")  # fmt: skip
@RUNS_OPTION
@BUDGET_OPTION
@QUIET_OPTION
@format_option("drill")
@click.option("--output", "outputs", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
              help="Also write the board to this file (.txt, .md, .json); may be given several times.")  # fmt: skip
@click.pass_obj
def drill(  # noqa: PLR0913 (options by name)
    collector: Collector | None, *, scenario: Path | None, base_words: tuple[str, ...], same_build: int,
    plants: tuple[str, ...], no_plants: bool, catalogue: Path, seed: int | None, folder: Path | None,
    only: tuple[str, ...], pool: tuple[Path, ...], replays: tuple[Path, ...], draws: int, runs: Path,
    budget_s: float, form: str, outputs: tuple[Path, ...],
) -> None:  # fmt: skip
    """Test the gate itself: run a build against itself, and against itself with plants of known size.

    A plant is a regression put in on purpose (docs/drills.md). The board says which were caught, with which cause, and
    how often the gate blocked a build that was not slower, over all campaigns of this scenario on this class of
    machines. GPUs that are free work side by side.

    Exit status: 10 where a plant that must be caught passed, or more runs of one build were blocked than declared;
    22 or 20 where something was not measured or decided, or a cause not named. Of a replay: 10 where a declared rate is
    broken.

    \b
    perfgate drill scenarios/cpu-tiny.yaml --base python=~/engine/bin/python --plant host_work=20000
    perfgate drill --resume latest
    perfgate drill scenarios/llama-8b-decode.yaml --replay runs
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    if (folder is None) != bool(scenario) or (no_plants and plants):
        raise UsageError("expected a scenario and a base, with --plant or --no-plants, or --resume DRILL alone")
    refuse_ignored("replay" if replays else "resume" if scenario is None else "new")
    check_outputs(outputs, "drill")
    if scenario is not None and replays:
        replay(scenario, replays, draws, seed or 0, form, outputs)
    from perfgate.drill.board import BOARD, Board, BoardReport, boards_like, exit_status, false_blocks, make_board
    from perfgate.drill.campaign import begin_drill, measure_drill
    from perfgate.machine.versioned_json import read_model, write_model
    from perfgate.record.run_names import DRILL
    from perfgate.report.run_folders import find_run

    named = [(file, read_model(Board, file)) for file in pool]
    stopped: InterruptedRunError | None = None
    with measuring() as progress:
        if scenario is None:
            campaign = find_run(Path(str(folder)), runs, DRILL)
        else:
            base = Builds(base_words, (), runs).subjects(progress, (scenario,))["base"]
            chosen = [] if no_plants else chosen_plants(catalogue, plants)
            campaign = begin_drill(scenario, base, chosen, runs, same_build, seed)
        click.echo(f"drill folder: {campaign}", err=True)
        try:
            measure_drill(campaign, only, budget_s, progress, collector)
        except InterruptedRunError as error:  # what was measured is reported all the same
            stopped = error
        finally:
            board = make_board(campaign)
            write_model(campaign / BOARD, board)
    like = boards_like(board, campaign, named, lambda text: click.echo(f"perfgate: {text}", err=True))
    report = BoardReport(board, false_blocks([board, *like]))
    show("drill", report, form, outputs)
    if stopped is not None:
        raise stopped
    click.get_current_context().exit(exit_status(board, report.pooled))


# What each way of calling the command takes beside the options for its report, and what is said of anything else
TAKES = {
    "new": ({"scenario", "base_words", "same_build", "plants", "no_plants", "catalogue", "seed", "pool", "runs",
             "budget_s"}, "a new campaign does not take it: --only goes with --resume, --draws with --replay"),
    "resume": ({"folder", "only", "pool", "runs", "budget_s"},
               "--resume goes on with a campaign as it began: it takes --only, --pool, --runs and --budget"),
    "replay": ({"scenario", "replays", "draws", "seed"},
               "--replay measures nothing: it takes a scenario, --draws and --seed"),
}  # fmt: skip


def refuse_ignored(way: Literal["new", "resume", "replay"]) -> None:
    """Refuse an option that this way of calling the command would ignore."""
    context, (takes, text) = click.get_current_context(), TAKES[way]
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if given and context.params.get(name) is not None and name not in (*takes, "form", "outputs"):
            raise UsageError(f"{parameter.opts[0]}: {text}")


def replay(scenario: Path, places: Sequence[Path], draws: int, seed: int, form: str, outputs: Sequence[Path]) -> None:
    """Try the rule on recorded pairs, show what came of it, and end."""
    from perfgate.drill.recordings import distinct, read_recordings
    from perfgate.drill.replay import Declared
    from perfgate.drill.replay_document import replay_report
    from perfgate.scenario.declaration import load

    recordings = list(distinct(recording for place in places for recording in read_recordings(place)))
    report = replay_report(recordings, Declared.of(load(scenario)), draws=draws, seed=seed)
    show("replay", report, form, outputs)
    click.get_current_context().exit(ExitStatus.REGRESSED if report.broken else ExitStatus.PASS)


def chosen_plants(catalogue: Path, words: Sequence[str]) -> list[tuple[Plant, tuple[str, ...]]]:
    """The plants that ``--plant`` names, each with its sizes; the whole catalogue where it names none."""
    from perfgate.drill.plants import load_catalogue

    named: dict[str, tuple[str, ...]] = {}
    for name, _, sizes in (word.partition("=") for word in words):
        named[name] = (*named.get(name, ()), sizes)
    return [(plant, named.get(plant.name, ())) for plant in load_catalogue(catalogue, tuple(named))]
