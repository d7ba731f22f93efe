"""A run on three Ray nodes that loses its command, its actor and a node, and ends as a run alone does."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner, Result
from filelock import FileLock
from hand_made import scenario_file
from perfgate_process import stub_words, wait_for
from three_nodes import CLASS, Mixed, ThreeNodes, command, engines, kept, three_nodes, trials_with_the_actor

from perfgate.capture.engine import SOCKETS, TEMPORARY
from perfgate.capture.pace import Step
from perfgate.cli.main import main
from perfgate.cli.measuring import Builds
from perfgate.cluster.cluster_run import ClusterRun
from perfgate.cluster.commands import declared
from perfgate.cluster.submission import connected, run_on
from perfgate.errors import ExitStatus, InterruptedRunError
from perfgate.judge.outcome import Outcome
from perfgate.record.run_record import read_records, read_run

CELLS = 24
HELD = "matrix: {output_tokens: [9, 10]}"
BOUND = ("--budget", "15")
"""Whatever goes wrong, no run waits for longer."""
MATRIX = "matrix: {{batch: {}, output_tokens: {}}}"


def written(folder: Path) -> list[str]:
    """Write three scenarios of 24 cells, and return the words that measure them: one cell by the stand-in engine."""
    words = stub_words(folder)
    (folder / "scenario.yaml").rename(folder / "stub.yaml")
    scenario_file(folder, "held", more=HELD)
    scenario_file(folder, "tiny", more=MATRIX.format([1, 3, 4], [4, 5, 6, 7, 8, 9, 10]))
    (folder / "perfgate.toml").write_text(f'[machines.{CLASS}]\nscenarios = "*.yaml"\nlabels = "{CLASS}"\n')
    return ["held.yaml", "stub.yaml", "tiny.yaml", *words[1:]]


def perfgate(folder: Path, *words: str) -> Result:
    """Run perfgate in this process."""
    return CliRunner().invoke(main, ["run", *words, "--format", "json"], obj=Mixed(folder))


def outcome(result: Result) -> Outcome:
    """What it printed."""
    return Outcome.model_validate_json(result.stdout)


def figures(measured: Outcome) -> list[Any]:
    """What each invented trial that no node lost adds up to."""
    gates = [gate for cell in measured.cells if cell.name.startswith("tiny") for gate in cell.gates]
    return [(gate.base, gate.head, gate.pairs, gate.p) for gate in gates]


def where_held(folder: Path) -> dict[str, str]:
    """The node of each cell that waits in the middle of a pair."""
    return {file.stem: file.read_text() for file in folder.glob("held*.waits") if file.read_text()}


def no_longer_held(folder: Path) -> None:
    """Forget which cells wait."""
    for file in folder.glob("held*.waits"):
        file.unlink()


@pytest.mark.slow
def test_a_run_survives_its_command_its_actor_and_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 cells on three nodes: what is killed costs an unfinished pair, and the verdict is that of a run alone."""
    words = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    with three_nodes(tmp_path / "locks", monkeypatch) as cluster:
        on = ["--on", cluster.address]
        name = loses_its_command_and_its_actor(tmp_path, cluster, [*words, *on, *BOUND])
        before = kept(tmp_path)

        killing = threading.Thread(target=kill_a_node, args=(tmp_path, cluster))
        killing.start()
        result = perfgate(tmp_path, "--resume", name, *on, *BOUND)
        killing.join()
        assert result.exit_code == ExitStatus.REGRESSED, result.output
        assert "trials that an earlier actor kept are taken over" in result.stderr
        assert "its node was lost; it goes on with what came back" in result.stderr
        assert before < kept(tmp_path)
        with connected(cluster.address):
            assert ray.util.list_named_actors(all_namespaces=True) == []
    everything = "runs/*.cluster/cells/*/*/run.json"
    assert (len([*tmp_path.glob(everything)]), engines(tmp_path, everything)) == (CELLS, [])
    assert not [*(tmp_path / "temporary").glob("perfgate-cluster-*")]

    alone = perfgate(tmp_path, *words, "--runs", "alone")
    assert alone.exit_code == result.exit_code, alone.output
    one, joined = outcome(alone), outcome(result)
    assert len(joined.cells) == CELLS
    assert [(cell.name, cell.verdict) for cell in joined.cells] == [(cell.name, cell.verdict) for cell in one.cells]
    assert figures(joined) == figures(one)
    assert variables_of_engines(Path("runs")) == variables_of_engines(Path("alone"))
    assert priorities_of_engines(Path("runs")) == priorities_of_engines(Path("alone"))


def loses_its_command_and_its_actor(folder: Path, cluster: ThreeNodes, words: list[str]) -> str:
    """Begin a run, and kill its command and then its actor while two cells are in the middle of a pair; its name."""
    first = command(folder, ["run", *words])
    begun = "runs/*.cluster/cells/00[12]/*/run.json"
    wait_for(lambda: len(where_held(folder)) == len([*folder.glob(begun)]) == 2 or first.poll() is not None)
    assert first.poll() is None, (folder / "output").read_text()
    first.kill()
    first.wait()
    wait_for(lambda: trials_with_the_actor(folder) > len(kept(folder)))  # measured while nobody looks on
    actor = cluster.actor()
    assert actor is not None
    actor.kill()
    wait_for(lambda: not engines(folder, "runs/*.cluster/cells/*/*/run.json"))
    no_longer_held(folder)
    return next(folder.glob("runs/*.cluster")).name.removesuffix(".cluster")


def kill_a_node(folder: Path, cluster: ThreeNodes) -> None:
    """Kill one on which a cell waits in the middle of a pair, then let both go on."""
    wait_for(lambda: len(where_held(folder)) == 2)
    cluster.kill(next(node for node in where_held(folder).values() if node != "head"))
    (folder / "go").touch()


def variables_of_engines(runs: Path) -> set[tuple[str, ...]]:
    """The names of variables that engines saw, but for those of a visit's folder: actors' folders are deep."""
    files = [*runs.rglob("environment.json")]
    assert len(files) >= 8
    return {tuple(sorted({*json.loads(file.read_text())} - {SOCKETS, TEMPORARY})) for file in files}


def priorities_of_engines(runs: Path) -> set[tuple[str, bool]]:
    """How likely engines were to be killed for want of memory, and whether they came first or their trials say no."""
    found = set()
    for file in runs.rglob("priority.json"):
        folder, index = file.parents[2], int(file.parent.name)
        records = read_records(folder, read_run(folder))
        (trial,) = [trial for record in records for trial in record.trials if trial.index == index]
        niceness, killed_first = json.loads(file.read_text())
        told = "low-priority" in trial.cautions and os.geteuid() != 0
        found.add((killed_first, told or niceness <= os.getpriority(os.PRIO_PROCESS, 0)))
    return found


@pytest.mark.slow
def test_a_cell_is_given_back_moved_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that cannot measure a cell, or are in use, give it to others; what Ctrl-C ended is gone on with."""
    words = written(tmp_path)
    scenario_file(tmp_path, "held", more="matrix: {output_tokens: [9]}")
    monkeypatch.chdir(tmp_path)
    with three_nodes(tmp_path / "locks", monkeypatch) as cluster:
        run = declared([Path("held.yaml")], builds_of(words), {"against": None, "seed": 1}, lambda _: None)
        told = stopped(tmp_path, cluster, run)
        assert any("given back: cpu is still in use by" in text for text in told)
        assert any("locks/head: is a file, not a folder" in text for text in told)
        assert any("it goes on with what came back, on another one" in text for text in told)
        (part,) = Path("runs").glob("*.cluster/cells/*/*")
        measured = {trial.pair for record in read_records(part, read_run(part)) for trial in record.trials}
        assert {0, 1, 2} <= measured

        on = ["--on", cluster.address]
        over = perfgate(tmp_path, "--resume", run.name, "--budget", "0.0001", *on)
        assert (over.exit_code, "the budget is over" in over.stderr) == (ExitStatus.INTERRUPTED, True), over.output
        (tmp_path / "go").touch()
        assert perfgate(tmp_path, "--resume", run.name, *on, *BOUND).exit_code == ExitStatus.PASS


def builds_of(words: list[str]) -> Builds:
    """The builds that words of a command line name."""
    return Builds(tuple(words[4:7:2]), (words[8],), Path("runs"))


def stopped(folder: Path, cluster: ThreeNodes, run: ClusterRun) -> list[str]:
    """Have a run measured where one node cannot and the others are in use, and stop it once it runs; what was told."""
    (folder / "locks").mkdir()
    (folder / "locks" / "head").touch()
    locks = [FileLock(folder / "locks" / node / "cpu.lock") for node in cluster.nodes if node != "head"]
    for lock in locks:
        lock.acquire()
    told: list[str] = []
    once = iter([KeyboardInterrupt])

    def progress(step: Step | str) -> None:
        if isinstance(step, str):
            told.append(step)
            if all(any(what in text for text in told) for what in ("not a folder", "given back")):
                for lock in locks:
                    lock.release()
        elif step.pair == 1 and (error := next(once, None)):
            raise error

    with pytest.raises(InterruptedRunError, match="what was measured is in") as caught:
        run_on(cluster.address, run, folder / "runs", progress, 180.0, Mixed(folder))
    assert f"perfgate run --resume {run.name} --on {cluster.address}" in str(caught.value)
    return told
