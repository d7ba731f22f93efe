"""A folder with the run folder of each cell of a run, as far as it came: beside the joined run, and with the actor."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfgate.cluster.cluster_run import ClusterRun
from perfgate.fleet.joining import part_in
from perfgate.judge.next_pairs import due
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.trial import Trial
from perfgate.record.manifest import check_sequence, read_manifest
from perfgate.record.run_names import run_below
from perfgate.record.run_record import Record, Run, read_records

MANIFEST: Final = "cluster.json"
CELLS: Final = "cells"
UNREADABLE: Final = "unreadable"  # below it is what came back of cells and cannot be read


@dataclass(frozen=True)
class CellsFolder:
    """The folder at a place."""

    path: Path

    def begin(self, run: ClusterRun) -> None:
        """Make it, where it is not there, and write which run it is of."""
        (self.path / CELLS).mkdir(parents=True, exist_ok=True)
        write_model(self.path / MANIFEST, run)

    def run(self) -> ClusterRun:
        """Which run it is of.

        Raises:
            RecordError: That cannot be read.
        """
        return read_model(ClusterRun, self.path / MANIFEST)

    def cell(self, number: int) -> Path:
        """The folder of a cell, which holds its run folder."""
        return self.path / CELLS / f"{number:03}"

    def has(self, number: int) -> bool:
        """Whether anything of a cell came back that can be judged."""
        return run_below(self.cell(number)) is not None

    def is_open(self, number: int) -> bool:
        """Whether a cell is to have more trials.

        Raises:
            PerfgateError: What came back cannot be read.
        """
        if not self.has(number):
            return True
        run, records = self._read(number)
        return any(due(run, {record.cell.cell_id: record for record in records}))

    def trials(self, number: int) -> tuple[Trial, ...]:
        """What was measured of a cell.

        Raises:
            PerfgateError: What came back cannot be read.
        """
        return tuple(trial for record in self._read(number)[1] for trial in record.trials) if self.has(number) else ()

    def set_aside(self, number: int) -> Path:
        """Move what came back of a cell out of the way, and return where to."""
        taken = len([*self.path.glob(f"{UNREADABLE}/*")])
        place = self.path / UNREADABLE / f"{number:03}-{taken + 1}"
        place.parent.mkdir(exist_ok=True)
        self.cell(number).rename(place)
        return place

    def parts(self) -> list[Path]:
        """The folders of the cells of which something came back; of the others they are removed."""
        for cell in self.path.glob(f"{CELLS}/*"):
            if run_below(cell) is None:
                shutil.rmtree(cell, ignore_errors=True)
        return sorted(self.path.glob(f"{CELLS}/*"))

    def _read(self, number: int) -> tuple[Run, Sequence[Record]]:
        folder = part_in(self.cell(number))
        run = read_manifest(folder)
        records = [*read_records(folder, run)]
        check_sequence(records)
        return run, records
