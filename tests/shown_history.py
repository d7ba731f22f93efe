"""The command that shows a history, and runs made for it to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from hand_made import cell, trials
from hand_made import record as record_of
from hand_made import run as run_of

from perfgate.cli.main import main
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import verdict_json
from perfgate.record.run_record import record_file, write_record, write_run
from perfgate.scenario.plan import Cell

INDEX = "index.html"


def history(*sources: Path, output: Path, cache: Path | None = None, more: list[str] | None = None) -> Result:
    """The command, run; without a cache it takes its usual one."""
    words = [*map(str, sources), "--output", str(output), *(["--cache", str(cache)] if cache else []), *(more or [])]
    return CliRunner().invoke(main, ["history", *words])


def left_out(told: Result) -> list[str]:
    """What a call named as left out."""
    said = "perfgate: left out: "
    return [line.removeprefix(said) for line in told.stderr.splitlines() if line.startswith(said)]


def the_page(site: Path) -> Path:
    """The page of the only cell."""
    (page,) = (file for file in site.iterdir() if file.name != INDEX)
    return page


def write_a_run(folder: Path, slowdown: float = 0.001, measured: Cell | None = None, **changes: Any) -> Path:
    """A run folder with a record of six pairs and a verdict."""
    of = measured or cell()
    kept = record_of(of, changes.pop("taken", None) or trials([slowdown + 0.0001 * n for n in range(6)]), **changes)
    manifest = run_of([of])
    (folder / "records").mkdir(parents=True)
    write_run(folder, manifest)
    write_record(record_file(folder, of), kept)
    (folder / "verdict.json").write_text(verdict_json(judge(manifest, {of.cell_id: kept})))
    return folder
