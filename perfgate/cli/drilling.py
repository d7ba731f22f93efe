"""``perfgate drill``: is the gate still able to see, and does it stay silent where there is nothing.

As in :mod:`perfgate.cli.main`, imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.cli.measuring import BASE_OPTION, BUDGET_OPTION, Builds, measuring, resume_option
from perfgate.cli.output_options import RUNS_OPTION, check_outputs, format_option, terminal_width
from perfgate.errors import ExitStatus, UsageError
from perfgate.report.formats import format_of, render

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.drill.plants import Plant

PLANTS = Path("drills")
"""Where the catalogue is, unless another folder is named."""


@click.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@BASE_OPTION
@click.option("--same-build", type=click.IntRange(0, 1000), default=4, show_default=True,
              help="Runs of the base against itself.")  # fmt: skip
@click.option("--plant", "plants", multiple=True, metavar="NAME[=SIZE,...]",
              help="Only this plant of the catalogue, at these sizes; may be given several times.")  # fmt: skip
@click.option("--no-plants", is_flag=True, help="Only the build against itself.")
@click.option("--catalogue", type=click.Path(path_type=Path, file_okay=False), default=PLANTS, show_default=True,
              help="Folder of plants.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order within pairs; drawn if not given.")
@resume_option("DRILL", "this campaign instead (a folder, its name, or latest); one that is over is shown again.")
@click.option("--only", multiple=True, metavar="EXERCISE", help="With --resume: only this exercise.")
@click.option("--pool", "pool", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="BOARD",
              help="Count the runs of this board.json too; those beside the campaign are counted anyway.")  # fmt: skip
@click.option("--replay", "replays", multiple=True, type=click.Path(path_type=Path), metavar="RECORDINGS",
              help="Measure nothing: try the rule on recorded pairs instead, of a run folder, a folder of them, or a "
              "CSV; may be given several times.")  # fmt: skip
@click.option("--draws", type=click.IntRange(1, 1_000_000), default=2000, show_default=True,
              help="With --replay: runs drawn for each true slowdown.")  # fmt: skip
@RUNS_OPTION
@BUDGET_OPTION
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
    how often the gate blocked a build that was not slower, over all campaigns on this class of machines. GPUs that are
    free work side by side.

    Exit status: 10 where a plant that must be caught passed, or more runs of one build were blocked than declared;
    22 or 20 where something was not measured or decided. Of a replay: 10 where a declared rate is broken.

    \b
    perfgate drill scenarios/cpu-tiny.yaml --base python=~/engine/bin/python --plant host_work=20000
    perfgate drill --resume latest
    perfgate drill scenarios/llama-8b-decode.yaml --replay runs
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    import os

    from perfgate.drill.board import boards_beside, exit_status, false_blocks, make_board, read_board, write_board
    from perfgate.drill.board_document import BoardReport
    from perfgate.drill.campaign import begin_drill, device_here, measure_drill, plan_drill
    from perfgate.report.run_folders import DRILL, find_run

    if (folder is None) != bool(scenario) or (folder is not None and (base_words or plants or seed is not None)):
        raise UsageError("expected a scenario and a base, or --resume DRILL alone")
    check_outputs(outputs, "drill")
    if replays:
        if scenario is None or base_words or plants or only or pool:
            raise UsageError("--replay measures nothing: it takes a scenario, --draws and --seed")
        replay(scenario, replays, draws, seed or 0, form, outputs)
    pooled = [read_board(file) for file in pool]
    with measuring() as progress:
        if scenario is None:
            found = find_run(Path(str(folder)), runs, DRILL)
        else:
            base = Builds(base_words, (), runs).subjects(progress, (scenario,))["base"]
            chosen = [] if no_plants else chosen_plants(catalogue, plants)
            device, gpus = device_here(os.environ)
            planned = plan_drill(scenario, base, chosen, same_build=same_build, device=device, gpus=gpus, seed=seed)
            found = begin_drill(planned, runs)
        click.echo(f"drill folder: {found}", err=True)
        try:
            measure_drill(found, only=only, budget_s=budget_s, progress=progress, collector=collector)
        finally:
            board = make_board(found)
            write_board(found, board)
    beside = boards_beside(found, board.machine_class, lambda text: click.echo(f"perfgate: {text}", err=True))
    report = BoardReport(board, false_blocks([board, *beside, *pooled]))
    show("drill", report, form, outputs)
    click.get_current_context().exit(exit_status(board, report.pooled))


def replay(scenario: Path, places: Sequence[Path], draws: int, seed: int, form: str, outputs: Sequence[Path]) -> None:
    """Try the rule on recorded pairs, show what came of it, and end."""
    from perfgate.drill.recordings import distinct, read_recordings
    from perfgate.drill.replay import Declared
    from perfgate.drill.replay_document import replay_report
    from perfgate.scenario.declaration import load

    found = list(distinct(one for place in places for one in read_recordings(place)))
    report = replay_report(found, Declared.of(load(scenario)), draws=draws, seed=seed)
    show("replay", report, form, outputs)
    click.get_current_context().exit(ExitStatus.REGRESSED if report.broken else ExitStatus.PASS)


def show(name: str, report: object, form: str, outputs: Sequence[Path]) -> None:
    """Print a report and write it to its files."""
    click.echo(render(name, form, report, terminal_width()), nl=False)
    for file in outputs:
        file.write_text(render(name, format_of(file, name), report), encoding="utf-8")


def chosen_plants(catalogue: Path, words: Sequence[str]) -> list[tuple[Plant, tuple[str, ...]]]:
    """The plants that ``--plant`` names, each with its sizes; the whole catalogue where it names none."""
    from perfgate.drill.plants import load_catalogue

    named = {name: tuple(filter(None, sizes.split(","))) for name, _, sizes in (word.partition("=") for word in words)}
    return [(plant, named.get(plant.name, ())) for plant in load_catalogue(catalogue, tuple(named))]
