"""What the actor that looks after a run decides and keeps, as a plain object."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hand_made_cluster import LOST, Cluster, everything, run_of

from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.cluster_run import Ending
from perfgate.cluster.coordinator import AGAIN_S, AWAY_S, MOST_AGAIN_S, NODE_WAIT_S, NODES, PLACE, News
from perfgate.cluster.travelling import GrowingFolder, put


def left_by_a_dead_actor(cluster: Cluster) -> Path:
    """The folder that it leaves where it is killed: what the kernel frees is free."""
    cluster.coordinator._held.close()
    return cluster.coordinator._folder.path


def test_a_later_attempt_ends_an_earlier_one(here: Path) -> None:
    """Nothing is taken of a task in whose place another was begun, and it does not begin any more."""
    coordinator = Cluster(run_of(here)).coordinator
    first, second = (coordinator.submitted(1).number for _ in range(2))

    assert coordinator.begin(1, first) is None
    assert not coordinator.keep(1, first, {"r/records/a.json": b"old"}, ["old"])
    assert coordinator.begin(1, second) is not None
    assert coordinator.keep(1, second, {"r/records/a.json": b"new"}, ["new"])
    coordinator.ended(1, Ending("done"))
    assert not coordinator.keep(1, second, {}, ["late"])
    news = coordinator.news("me", 0)
    assert (news.files, [*news.told]) == ({1: {"r/records/a.json": b"new"}}, ["new"])


def test_a_cell_moves_to_another_node_and_not_for_ever(here: Path) -> None:
    """A node that was lost is replaced, a few times; one that cannot measure the cell is avoided and does not count."""
    cluster = Cluster(run_of(here))
    coordinator = cluster.coordinator
    coordinator.submitted(1)
    assert coordinator.ended(1, LOST) == 0.0
    assert coordinator.submitted(1).avoided == frozenset()
    for node in "abcd":
        assert coordinator.ended(1, Ending("elsewhere", f"node {node}: no space left", "storage-failed", node)) == 0.0
    assert coordinator.submitted(1).avoided == {*"abcd"}
    assert coordinator.ended(1, Ending("elsewhere", "node a: no space left", "storage-failed", "a")) == 0.0
    assert coordinator.ended(1, LOST) is None

    ending = coordinator.news("me", 0).endings[1]
    assert (ending.kind, ending.text) == ("failed", f"its node was lost; so it went {NODES} times")
    assert "node a: no space left; it goes on with what came back, on another one" in cluster.told[1]


def test_a_cell_that_two_nodes_cannot_build_ends(here: Path) -> None:
    """One may lack what the other has; a third one is not tried."""
    cluster = Cluster(run_of(here))
    assert cluster.coordinator.ended(1, Ending("elsewhere", "node a: make failed", "build-failed", "a")) == 0.0
    assert cluster.coordinator.submitted(1).avoided == {"a"}
    assert cluster.coordinator.ended(1, Ending("elsewhere", "node b: no space left", "storage-failed", "b")) == 0.0
    assert cluster.coordinator.ended(1, Ending("elsewhere", "node c: make failed", "build-failed", "c")) is None
    text = "not built on 2 nodes, at last: node c: make failed"
    assert cluster.coordinator.news("me", 0).endings[1] == Ending("failed", text, "build-failed")


def test_a_cell_that_was_given_back_waits_longer_each_time(here: Path) -> None:
    """Up to a bound."""
    coordinator = Cluster(run_of(here)).coordinator
    waits = [coordinator.ended(1, Ending("given-back", "in use")) for _ in range(7)]
    assert waits == [AGAIN_S, 4.0, 8.0, 16.0, 32.0, MOST_AGAIN_S, MOST_AGAIN_S]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("kind", ["stopped", "given-back", "elsewhere"])
def test_the_end_of_the_budget(here: Path, kind: str, *, stopped: bool) -> None:
    """What has not ended by then ends as out of budget, or as stopped, whatever became of it; what is done is done."""
    cluster = Cluster(run_of(here), budget_s=5.0)
    coordinator, attempt = cluster.coordinator, cluster.coordinator.submitted(1)
    begun = coordinator.begin(1, attempt.number)
    assert begun is not None
    assert begun.seconds_left == 5.0
    if stopped:
        coordinator.stop()
        assert coordinator.begin(1, attempt.number) is None
    cluster.clock.now_s += 6.0

    assert (coordinator.wanted().over, coordinator.wanted().stopped) == (True, stopped)
    assert coordinator.ended(1, Ending(kind)) is None  # type: ignore[arg-type]
    assert coordinator.ended(2, Ending("done")) is None
    endings = coordinator.news("me", 0).endings
    assert (endings[1].code, endings[2].kind) == ("interrupted" if stopped else "out-of-budget", "done")
    cluster.driver.status = 3
    news = coordinator.news("me", 0)
    assert (news.finished, news.fault) == (True, "the driver of the tasks ended with 3")


def test_a_cell_that_no_node_can_hold(here: Path) -> None:
    """It is said once, and again where the nodes are others; after some time, or where the budget ends, it failed."""
    cluster = Cluster(run_of(here), budget_s=10 * NODE_WAIT_S)
    coordinator = cluster.coordinator
    for number in cluster.run.numbers:
        coordinator.submitted(number)
        assert not coordinator.homeless(number, "waits for a node")
    assert not coordinator.homeless(1, "waits for a node")
    assert not coordinator.homeless(1, "waits for a node with 2 GPUs")
    assert [text.partition(": ")[2] for text in cluster.told] == [
        "waits for a node", "waits for a node", "waits for a node with 2 GPUs",
    ]  # fmt: skip
    assert not coordinator.homeless(2, "")

    cluster.clock.now_s += NODE_WAIT_S + 1.0
    assert coordinator.homeless(1, "waits for a node with 2 GPUs")
    coordinator.ended(1, Ending("stopped"))
    cluster.clock.now_s += 10 * NODE_WAIT_S
    coordinator.ended(2, Ending("stopped"))
    endings = coordinator.news("me", 0).endings
    assert endings[1] == Ending("failed", "waits for a node with 2 GPUs")
    assert endings[2].code == "out-of-budget"


def test_a_cell_that_only_unfit_nodes_could_hold(here: Path) -> None:
    """It is given up at once, with what they lack, where new ones would lack it too."""
    coordinator = Cluster(run_of(here)).coordinator
    coordinator.ended(1, Ending("elsewhere", "node a: has no folder", "shard-foreign", "a"))
    assert coordinator.homeless(1, "waits for a node")
    coordinator.ended(1, Ending("stopped"))
    assert coordinator.news("me", 0).endings[1].text == "node a: has no folder; waits for a node"


def test_a_cell_that_only_broken_nodes_could_hold(here: Path) -> None:
    """It waits as one that no node can hold, for a few nodes: an autoscaler may go on bringing broken ones."""
    cluster = Cluster(run_of(here))
    coordinator = cluster.coordinator
    for number, node in enumerate("abc", 1):
        assert coordinator.ended(1, Ending("elsewhere", f"node {node}: no space left", "storage-failed", node)) == 0.0
        assert coordinator.homeless(1, "waits for a node") == (number == NODES)
        coordinator.begin(1, coordinator.submitted(1).number)

    coordinator.ended(2, Ending("elsewhere", "node a: no space left", "storage-failed", "a"))
    assert not coordinator.homeless(2, "waits for a node")
    cluster.clock.now_s += NODE_WAIT_S + 1.0
    assert coordinator.homeless(2, "waits for a node")


def test_news_come_in_pages(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that they came, each once, and the end is told with the last page."""
    monkeypatch.setattr("perfgate.cluster.coordinator.MESSAGE_BYTES", 4)
    cluster = Cluster(run_of(here))
    coordinator = cluster.coordinator
    attempt = coordinator.submitted(1).number
    for number in range(3):
        coordinator.keep(1, attempt, {f"r/{number}": b"12345"}, [f"file {number}"])
    coordinator.keep(1, attempt, {"r/1": b"changed"}, ["file 1 again"])
    cluster.driver.status = 0

    pages: list[News] = []
    seen = 0
    while not pages or not pages[-1].finished:
        pages.append(coordinator.news("me", seen))
        seen = pages[-1].seen
    assert [page.files for page in pages] == [{1: {"r/0": b"12345"}}, {1: {"r/2": b"12345"}}, {1: {"r/1": b"changed"}}]
    assert [text for page in pages for text in page.told] == ["file 0", "file 1", "file 2", "file 1 again"]


def test_a_disk_of_the_head_that_is_full_ends_the_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that measures is not blamed, what was kept stays, and the reason is told."""
    cluster = Cluster(run_of(here))
    kept = 0

    def full(*given: Any) -> None:
        nonlocal kept
        kept += 1
        if kept > 4:
            raise OSError(28, "No space left on device")
        put(*given)

    monkeypatch.setattr("perfgate.cluster.coordinator.put", full)
    ending = cluster.measure(1)
    assert (ending.kind, ending.node) == ("stopped", "")
    assert cluster.coordinator.wanted().stopped
    cluster.coordinator.ended(1, ending)
    news = cluster.coordinator.news("me", 0)
    assert news.fault == "the head node cannot keep what is measured: [Errno 28] No space left on device"
    assert news.endings[1].code == "interrupted"
    assert cluster.coordinator._folder.trials(1)


def test_whoever_looks_on_is_waited_for(here: Path) -> None:
    """What came back is removed once all have it; one that has not asked for long is gone."""
    cluster = Cluster(run_of(here))
    coordinator = cluster.coordinator
    for looker in ("first", "second", "killed"):
        coordinator.news(looker, 0)
    assert not coordinator.leave("first")
    cluster.clock.now_s += AWAY_S
    coordinator.news("second", 0)
    cluster.clock.now_s += 1.0
    assert not coordinator.leave("first")
    assert coordinator.leave("second")
    assert coordinator.leave("first")
    coordinator.clear()
    assert not [*Path(tempfile.gettempdir()).glob(f"{PLACE}*")]


def test_what_a_dead_actor_kept_is_taken_over(here: Path) -> None:
    """An actor that was killed while nobody looked on loses nothing: the next one of the run goes on with it."""
    run = run_of(here)
    killed = Cluster(run)
    killed.lose(1)
    left = left_by_a_dead_actor(killed)
    before = CellsFolder(left).trials(1)
    assert {trial.pair for trial in before} == {None, 0, 1}

    again = Cluster(run)
    assert not left.exists()
    assert "trials that an earlier actor kept are taken over" in again.told[0]
    again.finish()
    assert CellsFolder(again.coordinator._folder.path).trials(1)[: len(before)] == before


def test_what_a_command_has_is_taken_where_it_is_more(here: Path) -> None:
    """A folder of an earlier actor that holds no more than was fetched since is removed, and not gone on with."""
    run = run_of(here)
    killed = Cluster(run)
    killed.lose(1, pair=1)
    left = left_by_a_dead_actor(killed)
    elsewhere = Cluster(run)  # takes it over, as if on another head node with another folder
    elsewhere.lose(1, pair=3)
    fetched = everything(GrowingFolder(CellsFolder(left_by_a_dead_actor(elsewhere)).cell(1)))
    trials = len(CellsFolder(elsewhere.coordinator._folder.path).trials(1))
    assert not left.exists()

    again = Cluster(run, {1: fetched})
    assert len(CellsFolder(again.coordinator._folder.path).trials(1)) == trials
    assert again.told == []


@pytest.mark.parametrize("how", ["link", "writable", "held", "another run", "broken"])
def test_a_folder_that_is_not_trusted_is_left(here: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """One that others may write, that is in use, of another run, or that cannot be read stays as it is."""
    monkeypatch.setattr("perfgate.machine.locks.GRACE_S", 0.0)
    run = run_of(here)
    killed = Cluster(run)
    killed.lose(1)
    left = killed.coordinator._folder.path
    if how != "held":
        left_by_a_dead_actor(killed)
    if how == "link":
        elsewhere = left.rename(here / "elsewhere")
        left.symlink_to(elsewhere)
    elif how == "writable":
        left.chmod(0o770)
    elif how == "another run":
        CellsFolder(left).begin(run.model_copy(update={"perfgate": "0"}))
    elif how == "broken":
        next(left.glob("cells/001/*/records/*.json")).write_text("{")

    again = Cluster(run)
    assert left.exists()
    assert not CellsFolder(again.coordinator._folder.path).has(1)
    assert [str(left) in text for text in again.told] == [True] * (how in ("held", "another run", "broken"))
