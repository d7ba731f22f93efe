"""Which files of a run travel between nodes, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made_cluster import Cluster, run_of

from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.travelling import GrowingFolder, put, read_for_later_pairs
from perfgate.errors import RecordError


def test_files_that_changed_travel_until_they_were_kept(tmp_path: Path) -> None:
    """Records come last; locks, caches, workers ahead of their trial and half-written files stay."""
    names = ("r/run.json", "r/records/a.json", "r/trials/001/engine.log", "r/scenario/a.yaml")
    put(tmp_path, dict.fromkeys((*names, "r/lock", "r/cache-x/a", "r/parked-1/a", "r/records/.a.json.1.part"), b"1"))
    growing = GrowingFolder(tmp_path)

    inside = ["r/scenario/a.yaml", "r/trials/001/engine.log", "r/run.json", "r/records/a.json"]
    assert [*growing.changed()] == [*growing.changed()] == inside
    growing.sent()
    assert growing.changed() == {}
    put(tmp_path, {"r/records/a.json": b"22"})
    assert growing.changed() == {"r/records/a.json": b"22"}


def test_every_beginning_of_what_travels_can_be_read(here: Path) -> None:
    """However far a transfer came, the cell can be gone on with: with no trials, or with those of its record."""
    cluster = Cluster(run_of(here))
    cluster.lose(1)
    whole = cluster.coordinator.news("me", 0).files[1]
    trials = [0] * len(whole)
    for number in range(len(whole)):
        folder = CellsFolder(here / f"cut-{number}")
        folder.put(1, dict([*whole.items()][: number + 1]))
        trials[number] = len(folder.trials(1))
        assert folder.is_open(1)
    assert trials[0] == 0
    assert trials[-1] > 0


def test_later_pairs_need_no_files_of_trials(tmp_path: Path) -> None:
    """But for which numbers are taken."""
    names = ("r/run.json", "r/records/a.json", "r/trials/001/trace.csv", "r/trials/002/engine.log", "r/scenario/a.yaml")
    put(tmp_path / "from", dict.fromkeys(names, b"1"))
    needed = read_for_later_pairs(tmp_path / "from")

    assert [*needed] == ["r/trials/001/", "r/trials/002/", "r/scenario/a.yaml", "r/run.json", "r/records/a.json"]
    put(tmp_path / "to", needed)
    assert sorted(folder.name for folder in (tmp_path / "to/r/trials").iterdir()) == ["001", "002"]


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "", "../out/"])
def test_no_file_leads_out(tmp_path: Path, path: str) -> None:
    """What a node sends is written below the folder of its cell, or not at all."""
    with pytest.raises(RecordError, match="leads out"):
        put(tmp_path / "cell", {path: b""})
