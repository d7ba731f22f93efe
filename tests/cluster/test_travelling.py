"""Which files of a run travel between nodes, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hand_made_cluster import Cluster, everything, run_of

from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.cluster_run import Piece
from perfgate.cluster.travelling import GrowingFolder, put, read_for_later_pairs, read_piece
from perfgate.errors import RecordError
from perfgate.machine.atomic_files import sha256_hex


def test_files_that_changed_travel_until_they_were_kept(tmp_path: Path) -> None:
    """Records come last; locks, caches, workers ahead of their trial and half-written files stay."""
    names = ("r/run.json", "r/records/a.json", "r/trials/001/engine.log", "r/scenario/a.yaml")
    put(tmp_path, dict.fromkeys((*names, "r/lock", "r/cache-x/a", "r/parked-1/a", "r/records/.a.json.1.part"), b"1"))
    growing = GrowingFolder(tmp_path)

    inside = ["r/scenario/a.yaml", "r/trials/001/engine.log", "r/run.json", "r/records/a.json"]
    assert [*everything(growing)] == [*everything(growing)] == inside
    for files in growing.changed():
        growing.sent(files)
    assert everything(growing) == {}
    put(tmp_path, {"r/records/a.json": b"22"})
    assert everything(growing) == {"r/records/a.json": b"22"}


def test_no_message_is_larger_than_a_piece_and_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file goes in pieces, small ones together, and both come whole."""
    monkeypatch.setattr("perfgate.cluster.travelling.PIECE_BYTES", 10)
    monkeypatch.setattr("perfgate.cluster.travelling.MESSAGE_BYTES", 25)
    files = {f"r/trials/001/{name}": name.encode() * length for name, length in
             (("a", 3), ("b", 35), ("c", 20), ("d", 0), ("e", 10), ("f", 9))}  # fmt: skip
    put(tmp_path / "from", files)

    messages = [*GrowingFolder(tmp_path / "from").changed()]
    sizes = [[len(one.content if isinstance(one, Piece) else one) for one in each.values()] for each in messages]
    for message in messages:
        put(tmp_path / "to", message)

    assert everything(GrowingFolder(tmp_path / "to")) == files
    assert max(map(max, sizes)) <= 10
    assert max(map(sum, sizes)) <= 25
    assert len(messages) < sum(map(len, sizes))


def test_what_no_record_names_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured travels whatever its size, then logs, then what there is room for; the rest is named, once."""
    monkeypatch.setattr("perfgate.cluster.travelling.LARGEST_LEFT", 100)
    monkeypatch.setattr("perfgate.cluster.travelling.ALL_LEFT", 150)
    trial, large = "r/trials/001", b"x" * 1000
    timeline = {"path": "trials/001/timeline.jsonl.gz", "sha256": sha256_hex(large)}
    sizes = {"a": 60, "b": 60, "core\n": 101, "engine.log": 60}
    put(tmp_path, {f"{trial}/{name}": b"x" * size for name, size in sizes.items()})
    put(
        tmp_path, {f"{trial}/timeline.jsonl.gz": large, "r/records/a.json": json.dumps({"trials": [timeline]}).encode()}
    )
    growing = GrowingFolder(tmp_path)

    names = [name.rpartition("/")[2] for name in everything(growing)]

    assert names == ["timeline.jsonl.gz", "engine.log", "a", "a.json"]
    assert growing.behind() == [
        f"{trial}/b stays behind: 0.0 MiB that no record names",
        f"{trial}/core? stays behind: 0.0 MiB that no record names",
    ]
    assert growing.behind() == []


def test_a_file_that_changes_while_it_is_read_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are of one version, or it stays behind until the next time."""
    monkeypatch.setattr("perfgate.cluster.travelling.PIECE_BYTES", 4)
    put(tmp_path, {"r/trials/001/a": b"old" * 4})
    growing = GrowingFolder(tmp_path)
    messages = growing.changed()
    begun = next(messages)
    put(tmp_path, {"r/trials/001/a": b"new" * 4})

    pieces = [one for message in (begun, *messages) for one in message.values()]
    assert [one.content for one in pieces if isinstance(one, Piece)] == [b"oldo", b"ldol"]
    assert growing.behind() == ["r/trials/001/a stays behind: it changed while it was read"]
    assert everything(growing) == {"r/trials/001/a": b"new" * 4}


@pytest.mark.parametrize("second", [Piece(b"45", 2, 6, ""), Piece(b"45", 4, 6, ""), Piece(b"3456", 3, 6, "")])
def test_pieces_follow_each_other(tmp_path: Path, second: Piece) -> None:
    """One that does not leaves the file as it was."""
    put(tmp_path, {"a": b"before"})
    put(tmp_path, {"a": Piece(b"123", 0, 6, "")})
    with pytest.raises(RecordError, match="do not follow"):
        put(tmp_path, {"a": second})
    assert (tmp_path / "a").read_bytes() == b"before"


def test_the_longest_name(tmp_path: Path) -> None:
    """A name as long as names may be, and of any bytes, is kept as it is."""
    name = os.fsdecode(b"\xff\n" * 127)
    put(tmp_path / "from", {f"r/trials/001/{name}": b"1"})
    put(tmp_path / "to", everything(GrowingFolder(tmp_path / "from")))
    assert [file.name for file in (tmp_path / "to/r/trials/001").iterdir()] == [name]


@pytest.mark.parametrize("where", ["folder", "file", "half of it"])
def test_no_link_is_followed(tmp_path: Path, where: str) -> None:
    """Whoever can write where files are put sends none of them elsewhere, and none is read from elsewhere."""
    outside, folder = tmp_path / "outside", tmp_path / "cell"
    (folder / "r").mkdir(parents=True)
    outside.mkdir()
    (outside / "a").write_bytes(b"theirs")
    link = {"folder": "r/trials", "file": "r/a", "half of it": f"r/.{sha256_hex('a')[:16]}.part"}[where]
    (folder / link).symlink_to(outside / ("" if where == "folder" else "a"))

    if where == "folder":
        with pytest.raises(RecordError, match="cannot be in the run folder"):
            put(folder, {"r/trials/a": b"ours"})
        with pytest.raises(OSError, match="Not a directory"):
            read_piece(folder, "r/trials/a")
    else:
        if where == "file":
            with pytest.raises(OSError, match="symbolic links"):
                read_piece(folder, "r/a")
        put(folder, {"r/a": b"ours"})
        assert (folder / "r/a").read_bytes() == b"ours"

    assert [file.name for file in outside.iterdir()] == ["a"]
    assert (outside / "a").read_bytes() == b"theirs"


def test_every_beginning_of_what_travels_can_be_read(here: Path) -> None:
    """However far a transfer came, the cell can be gone on with: with no trials, or with those of its record."""
    cluster = Cluster(run_of(here))
    cluster.lose(1)
    whole = cluster.coordinator.news("me", 0).files[1]
    trials = [0] * len(whole)
    for number in range(len(whole)):
        folder = CellsFolder(here / f"cut-{number}")
        put(folder.cell(1), dict([*whole.items()][: number + 1]))
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


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "", "../out/", "a/b\0", "d/" * 20, "\ud800"])
def test_no_file_leads_out(tmp_path: Path, path: str) -> None:
    """What a node sends is written below the folder of its cell, or not at all."""
    with pytest.raises(RecordError, match=r"leads out|surrogates not allowed"):
        put(tmp_path / "cell", {path: b""})
