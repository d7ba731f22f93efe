"""``perfgate check``: is what is declared right, can it run, what would it cost and show.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate import rooms
from perfgate.cli.measuring import BUDGET_OPTION, PRESET_OPTION, Builds, as_preset, naming_builds
from perfgate.cli.output_options import echo_document
from perfgate.units import plural

if TYPE_CHECKING:
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.plan import Cell
    from perfgate.scenario.subject import Subject


@click.command()
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@naming_builds
@rooms.with_options("check")
@BUDGET_OPTION
@PRESET_OPTION
@click.option("--dump", is_flag=True, help="Print each scenario with its defaults filled in, as YAML.")
def check(
    scenarios: tuple[Path, ...],
    builds: Builds,
    budget_s: float,
    preset: str | None,
    dump: bool,  # noqa: FBT001 (a flag)
    **more: Any,
) -> None:
    """Check scenario files; show what a run of each would measure, cost and detect. No engine is started.

    The builds are --base and --head, or those of perfgate.toml: their interpreters are asked which engine arguments
    they take, in about a second; one that is not there is an error. Nothing is built: a ref is asked once it is. A
    file called perfgate.toml is checked as what it is. --preset shows what a run with it would be. --budget says which
    looks so many minutes are enough for.

    \b
    perfgate check scenarios/*.yaml perfgate.toml
    perfgate check scenarios/cpu-tiny.yaml --base python=~/engine/bin/python
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate.scenario.declaration import dump as dump_scenario
    from perfgate.scenario.subject_words import CONFIG_FILE

    configs = [file for file in scenarios if file.name == CONFIG_FILE]
    loaded = as_preset((file for file in scenarios if file not in configs), preset)
    for file in configs:
        click.echo(_summary(file, rooms.use("config").load_config(file)))
    if dump:
        click.echo("---\n".join(dump_scenario(file.scenario) for file in loaded), nl=False)
        return
    if not loaded:
        return
    subjects = _subjects(builds)
    preflight = rooms.offered("preflight")
    checked = preflight(loaded, subjects) if preflight else None
    for warning in checked.warnings if checked else ():
        click.echo(f"perfgate: warning: {warning}", err=True)
    heads = max(len(subjects) - 1, 1)
    notes = checked.notes if checked else ("what engines accept is not checked: perfgate/doctor is not installed",)
    _show_prices(loaded, builds.runs, more, budget_s, notes, heads)


def _summary(file: Path, config: Any) -> str:
    recipe = "[build] is valid, not tried" if config.build else "no [build]"
    return f"{file}: subjects: {', '.join(config.subjects) or 'none'}; {recipe}"


def _subjects(builds: Builds) -> dict[str, Subject]:
    """The builds that words or ``perfgate.toml`` name; none where nothing does.

    Raises:
        UsageError: A word is wrong, or what it or ``perfgate.toml`` names is not there.
    """
    from perfgate.capture.engine import require_subjects
    from perfgate.cli.output_options import subject_tables
    from perfgate.scenario.subject_words import find_config

    named = builds.base or builds.head
    if not named and "base" not in subject_tables():
        return {}
    subjects = builds.with_heads(lambda _: None, build=False)
    if named or not _is_of_a_push(find_config()):
        require_subjects({name: subject for name, subject in subjects.items() if subject.built_from is None})
    return subjects


def _is_of_a_push(config: Path | None) -> bool:
    """Whether a file is in the copy of a commit that the pre-push hook has checked: no environments are beside it."""
    git = (config.parent if config else Path.cwd()) / ".git"
    return git.is_dir() and not any(git.iterdir())


def _show_prices(
    loaded: Sequence[LoadedScenario],
    runs: Path,
    more: dict[str, Any],
    budget_s: float,
    notes: Sequence[str],
    heads: int,
) -> None:
    from perfgate.judge.next_cell import soonest_first, told
    from perfgate.judge.power import cell_power
    from perfgate.record.cost import newest_records
    from perfgate.report.power_report import power_document
    from perfgate.scenario.plan import ALPHA, BETA, resolve_cells

    cells = [resolve_cells(scenario) for scenario in loaded]
    history = {cell.cell_id: newest_records(runs, cell) for of_scenario in cells for cell in of_scenario}
    seen: dict[str, Cell] = {}
    for of_scenario in cells:
        gates = heads * sum(len(cell.gates) for cell in of_scenario)
        for cell in of_scenario:
            price = cell_power(cell, history[cell.cell_id], gates, heads)
            ways = [rooms.bring(place)(cell, price, gates, more) for place in rooms.entries("prices").values()]
            echo_document(power_document(cell, price, [line for way in ways for line in way], budget_s))
            if cell.cell_id in seen:
                click.echo(f"  the same cell as {seen[cell.cell_id].name}: one run measures only one of them")
            seen.setdefault(cell.cell_id, cell)
    declared = [*seen.values()]
    if (ordered := soonest_first(declared, history, heads)) != declared:
        click.echo(told(ordered))
    for note in notes:
        click.echo(note)
    if heads > 1:
        click.echo(f"{heads} heads beside one base: a pair is a round of {heads + 1} trials, and all gates share alpha")
    click.echo(
        f"{plural(sum(map(len, cells)), 'cell')}; each scenario on its own: alpha {ALPHA * 100:g} % a run, "
        f"beta {BETA * 100:g} % a gate"
    )
