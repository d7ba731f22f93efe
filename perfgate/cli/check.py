"""``perfgate check``: is what is declared right, can it run, what would it cost and show.

As in :mod:`perfgate.cli.main`, which has it among its own, imports stand in the bodies, so that ``--help`` answers at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.cli.measuring import BASE_OPTION, HEAD_OPTION, subjects_of
from perfgate.cli.output_options import RUNS_OPTION, echo_document

if TYPE_CHECKING:
    from perfgate.metrics.trial import Role
    from perfgate.project.config import Config
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.subject import Subject


@click.command()
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@BASE_OPTION
@HEAD_OPTION
@click.option("--dump", is_flag=True, help="Print each scenario with its defaults filled in, as YAML.")
@RUNS_OPTION
def check(
    scenarios: tuple[Path, ...],
    base_words: tuple[str, ...],
    head_words: tuple[str, ...],
    dump: bool,  # noqa: FBT001 (a flag)
    runs: Path,
) -> None:
    """Check scenario files; show what a run of each would measure, cost and detect. No engine is started.

    The builds are --base and --head, or those of perfgate.toml: their interpreters are asked which engine arguments
    they take, in about a second. Nothing is built: a ref is asked once it is. A file called perfgate.toml is checked
    as what it is.

    \b
    perfgate check scenarios/*.yaml perfgate.toml
    perfgate check scenarios/cpu-tiny.yaml --base python=~/engine/bin/python
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate.doctor.preflight import preflight
    from perfgate.project.config import CONFIG_FILE, load_config
    from perfgate.scenario.declaration import dump as dump_scenario
    from perfgate.scenario.declaration import load

    configs = [file for file in scenarios if file.name == CONFIG_FILE]
    loaded = tuple(load(file) for file in scenarios if file not in configs)
    for file in configs:
        click.echo(_said_of(file, load_config(file)))
    if dump:
        click.echo("---\n".join(dump_scenario(one.scenario) for one in loaded), nl=False)
        return
    if not loaded:
        return
    found = preflight(loaded, _subjects(base_words, head_words, runs))
    for warning in found.warnings:
        click.echo(f"perfgate: warning: {warning}", err=True)
    _show_prices(loaded, runs, found.notes)


def _said_of(file: Path, config: Config) -> str:
    builds = "[build] is valid, not tried" if config.build else "no [build]"
    return f"{file}: subjects: {', '.join(config.subjects) or 'none'}; {builds}"


def _subjects(base_words: Sequence[str], head_words: Sequence[str], runs: Path) -> dict[Role, Subject]:
    """The builds that words or ``perfgate.toml`` name; none where nothing does.

    Raises:
        UsageError: A word is wrong, or what it names is not there.
    """
    from perfgate.capture.engine import find_subject
    from perfgate.errors import UsageError
    from perfgate.project.config import find_config, load_config

    if not base_words and not head_words and "base" not in load_config(find_config(Path.cwd())).subjects:
        return {}
    subjects = subjects_of(base_words, head_words, lambda _: None, runs=runs, build=False)
    for role, words in (("base", base_words), ("head", head_words)):
        named = next((subject for one, subject in subjects.items() if one == role), None)
        missing = find_subject(named) if words and named is not None and named.built_from is None else None
        if missing is not None:
            raise UsageError(missing.text, where=f"--{role}")
    return subjects


def _show_prices(loaded: Sequence[LoadedScenario], runs: Path, notes: Sequence[str]) -> None:
    from perfgate.judge.power import cell_power
    from perfgate.record.cost import newest_records
    from perfgate.report.power_report import power_document
    from perfgate.scenario.plan import ALPHA, BETA, resolve_cells
    from perfgate.units import plural

    cells = [resolve_cells(one) for one in loaded]
    seen: dict[str, str] = {}
    for one in cells:
        gates = sum(len(cell.gates) for cell in one)
        for cell in one:
            echo_document(power_document(cell, cell_power(cell, newest_records(runs, cell), gates)))
            if cell.cell_id in seen:
                click.echo(f"  the same cell as {seen[cell.cell_id]}: one run measures only one of them")
            seen.setdefault(cell.cell_id, cell.name)
    for note in notes:
        click.echo(note)
    count = sum(map(len, cells))
    click.echo(
        f"{plural(count, 'cell')}; each scenario on its own: alpha {ALPHA * 100:g} % a run, "
        f"beta {BETA * 100:g} % a gate"
    )
