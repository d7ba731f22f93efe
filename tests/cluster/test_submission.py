"""The side of the command, with a coordinator in this process: looking on, going on, joining."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from hand_made_cluster import Cluster, everything, run_of
from perfgate_process import DEADLINE_S

from perfgate.capture.pace import Step
from perfgate.cluster.cells_folder import UNREADABLE, CellsFolder
from perfgate.cluster.cluster_run import Ending, Piece
from perfgate.cluster.coordinator import Coordinator
from perfgate.cluster.submission import connected, joined, what_is_left
from perfgate.cluster.travelling import GrowingFolder
from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.record.run_record import read_run


def finished(cluster: Cluster, folder: Path) -> tuple[str, list[str]]:
    """What a command that looks on from ``folder`` ends with: its verdict, and those of the cells."""
    looking = cluster.looking(folder)
    news = looking.until_finished()
    looking.leave()
    cells = CellsFolder(folder / f"{cluster.run.name}.cluster")
    outcome = joined(cells, cluster.run, news, "", stopped=False).outcome
    return outcome.verdict, [cell.verdict for cell in outcome.cells]


def test_two_that_look_on_end_alike(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither takes the end from the other, whichever is first, and nothing is kept once both have it."""
    monkeypatch.setattr("perfgate.cluster.submission.POLL_S", 0.01)
    cluster = Cluster(run_of(here))
    slow = cluster.looking(here / "slow")
    slow._next()
    cluster.finish()
    told: list[Step | str] = []
    fast = cluster.looking(here / "fast", told)
    news = fast.until_finished()
    leaving = threading.Thread(target=fast.leave)
    leaving.start()
    assert cluster.coordinator._folder.path.exists()

    assert slow.until_finished().endings == news.endings
    slow.leave()
    leaving.join(timeout=DEADLINE_S)
    assert not leaving.is_alive()
    assert not cluster.coordinator._folder.path.exists()
    outcomes = [
        joined(CellsFolder(here / name / f"{cluster.run.name}.cluster"), cluster.run, news, "", stopped=False).outcome
        for name in ("slow", "fast")
    ]
    assert outcomes[0].verdict == outcomes[1].verdict == "pass"
    assert [cell.gates for cell in outcomes[0].cells] == [cell.gates for cell in outcomes[1].cells]


def test_large_files_come_in_pieces(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that looks on asks for the rest of each; of a file that was replaced meanwhile it takes the newer."""
    monkeypatch.setattr("perfgate.cluster.travelling.PIECE_BYTES", 100)
    cluster = Cluster(run_of(here))
    rest, replaced = Coordinator.rest, [b"1" * 250, b"2" * 250, b"3" * 99]
    attempt = cluster.coordinator.submitted(2).number

    def replacing(self: Coordinator, number: int, path: str, before: Piece) -> Piece | None:
        if path == "r/records/replaced" and replaced:
            self.keep(2, attempt, {path: replaced.pop(0)}, ())
        return rest(self, number, path, before)

    monkeypatch.setattr(Coordinator, "rest", replacing)
    cluster.coordinator.keep(2, attempt, {"r/records/replaced": b"0" * 250}, ())
    cluster.finish([1])
    looking = cluster.looking(here / "runs")

    while replaced:
        looking.until_finished()
    looking.until_finished()

    cells, kept = looking.folder, cluster.coordinator._folder
    assert cells.trials(1) == kept.trials(1)
    assert everything(GrowingFolder(cells.cell(1))) == everything(GrowingFolder(kept.cell(1)))
    assert everything(GrowingFolder(cells.cell(2))) == {"r/records/replaced": b"3" * 99}


def test_a_cell_that_cannot_be_read_is_measured_anew(here: Path) -> None:
    """What is wrong is told, what came back is kept apart, and the other cells are not held up."""
    cluster = Cluster(run_of(here, cells=3))
    cluster.finish()
    assert finished(cluster, here / "runs") == ("pass", ["pass"] * 3)
    folder = CellsFolder(here / "runs" / f"{cluster.run.name}.cluster")
    record = next(folder.cell(2).glob("*/records/*.json"))
    record.write_text(record.read_text()[:-100])
    told: list[object] = []

    assert what_is_left(cluster.run, folder, told.append)[1] == [2]
    (text,) = told
    assert str(text).startswith(f"{cluster.run.cell(2)}: {record}")
    (kept,) = (folder.path / UNREADABLE).iterdir()
    assert str(text).endswith(f"It is measured anew; what came back of it is in {kept}")
    assert record.name in {file.name for file in kept.rglob("*.json")}
    again = Cluster(cluster.run)
    again.finish([2])
    looking = again.looking(here / "runs")
    looking.until_finished()
    assert what_is_left(cluster.run, folder, told.append)[1] == []
    assert read_run(next(folder.cell(2).glob("*"))).part is not None


def test_what_was_not_measured(here: Path) -> None:
    """Where nothing was it is an error with each reason once; where something was, the verdict says what is missing."""
    cluster = Cluster(run_of(here))
    for number in cluster.run.numbers:
        cluster.coordinator.homeless(number, "waits for a node: none")
        cluster.coordinator.ended(number, Ending("stopped"))
    cluster.driver.status = 0
    with pytest.raises(NotMeasuredError, match="waits for a node") as caught:
        finished(cluster, here / "nothing")
    assert caught.value.text.splitlines() == ["waits for a node: none"]

    part = Cluster(cluster.run)
    part.finish([1])
    part.coordinator.homeless(2, "waits for a node: none")
    part.coordinator.ended(2, Ending("stopped"))
    assert finished(part, here / "part") == ("not-measured", ["pass", "not-measured"])


def test_a_run_that_was_stopped_says_how_to_go_on(here: Path) -> None:
    """What was measured is joined all the same."""
    cluster = Cluster(run_of(here))
    cluster.finish([1])
    cluster.coordinator.stop()
    cluster.coordinator.ended(2, Ending("stopped"))
    with pytest.raises(InterruptedRunError, match="stopped; what was measured is in"):
        finished(cluster, here / "runs")
    assert (here / "runs" / cluster.run.name / "verdict.json").exists()


def test_what_was_decided_before_is_seen_from_elsewhere(here: Path) -> None:
    """A command that looks on at a run which was gone on with ends with its whole verdict."""
    cluster = Cluster(run_of(here))
    cluster.finish([1])
    looking = cluster.looking(here / "runs")
    looking.until_finished()
    looking.leave()
    folder = CellsFolder(here / "runs" / f"{cluster.run.name}.cluster")
    files, cells = what_is_left(cluster.run, folder, lambda _: None)
    assert cells == [2]

    again = Cluster(cluster.run, files, open_cells=cells)
    again.finish(cells)
    assert finished(again, here / "elsewhere") == ("pass", ["pass", "pass"])


def test_what_ray_prints_is_not_in_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells of lost nodes on standard output, where ``--format json`` is read."""
    monkeypatch.setattr("ray.init", lambda *_, **__: None)
    monkeypatch.setattr("ray.shutdown", lambda: sys.stdout.write("held back\n"))
    with connected("auto"):
        sys.stdout.write("(raylet) Raylet is terminated.\n")
    assert capsys.readouterr() == ("", "(raylet) Raylet is terminated.\nheld back\n")
