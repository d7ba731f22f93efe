"""A run on three Ray nodes that loses one of them, its command and its actor, and ends as a run alone does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from click.testing import CliRunner, Result
from filelock import FileLock
from hand_made import scenario_file
from perfgate_process import marked_processes, stub_words, wait_for
from three_nodes import CLASS, Mixed, ThreeNodes, command, three_nodes

from perfgate.capture.pace import Step
from perfgate.cli.clustering import declared
from perfgate.cli.main import main
from perfgate.cli.measuring import Builds
from perfgate.cluster.submission import connected, run_on
from perfgate.errors import ExitStatus, InterruptedRunError
from perfgate.judge.outcome import Outcome
from perfgate.record.run_record import read_records, read_run

CELLS = 24
HELD = "matrix: {output_tokens: [9, 10]}"
MATRIX = "matrix: {{batch: {}, output_tokens: {}}}"


def written(folder: Path) -> list[str]:
    """Write three scenarios of 24 cells, and return the words that measure them: two cells by the stand-in engine."""
    words = stub_words(folder)
    stub = folder / "stub.yaml"
    (folder / "scenario.yaml").rename(stub)
    stub.write_text(f"{stub.read_text()}matrix: {{output_tokens: [4, 5]}}\n")
    scenario_file(folder, "held", more=HELD)
    scenario_file(folder, "tiny", more=MATRIX.format([1, 2, 3, 4], [4, 5, 6, 7, 8]))
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


def kept(folder: Path) -> set[tuple[str, int]]:
    """The trials in the records that came back, by cell and number."""
    manifests = folder.glob("runs/*.cluster/cells/*/*/run.json")
    records = [record for file in manifests for record in read_records(file.parent, read_run(file.parent))]
    return {(record.cell.name, trial.index) for record in records for trial in record.trials}


def engines(folder: Path, manifests: str) -> list[tuple[str, psutil.Process]]:
    """The processes of cells that came back, in part or whole, with the names of their runs."""
    names = [file.parent.name for file in folder.glob(manifests)]
    return [(name, process) for name in names for process in marked_processes(name)]


def where_held(folder: Path) -> dict[str, str]:
    """The node of each cell that waits in the middle of a pair."""
    return {file.stem: file.read_text() for file in folder.glob("held*.waits") if file.read_text()}


@pytest.mark.slow
def test_a_run_survives_its_node_its_command_and_its_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 cells on three nodes: what is killed costs an unfinished pair, and the verdict is that of a run alone."""
    words = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    with three_nodes(tmp_path / "locks", monkeypatch) as cluster:
        on = ["--on", cluster.address]
        first = command(tmp_path, ["run", *words, *on])
        begun = "runs/*.cluster/cells/00[12]/*/run.json"
        wait_for(lambda: len(where_held(tmp_path)) == len([*tmp_path.glob(begun)]) == 2 or first.poll() is not None)
        name = next(Path("runs").glob("*.cluster")).name.removesuffix(".cluster")
        first.kill()
        first.wait()

        lost = next(node for node in where_held(tmp_path).values() if node != "head")
        cluster.kill(lost)
        killing = threading.Thread(target=kill_the_actor, args=(tmp_path, cluster))
        killing.start()
        attached = perfgate(tmp_path, "--attach", name, *on)
        killing.join()
        assert attached.exit_code == ExitStatus.INTERRUPTED, attached.output
        assert "its node was lost; it goes on with what came back" in attached.stderr
        before = kept(tmp_path)

        (tmp_path / "go").touch()
        result = perfgate(tmp_path, "--resume", name, *on)
        assert result.exit_code == ExitStatus.REGRESSED, result.output
        assert before < kept(tmp_path)
        gives_back_and_stops(tmp_path, cluster, on, words)
        with connected(cluster.address):
            assert ray.util.list_named_actors(all_namespaces=True) == []
    everything = "*/*.cluster/cells/*/*/run.json"
    assert (len([*tmp_path.glob(everything)]), engines(tmp_path, everything)) == (CELLS + 1, [])

    scenario_file(tmp_path, "held", more=HELD)
    alone = perfgate(tmp_path, *words, "--runs", "alone")
    assert alone.exit_code == result.exit_code, alone.output
    one, joined = outcome(alone), outcome(result)
    assert len(joined.cells) == CELLS
    assert [(cell.name, cell.verdict) for cell in joined.cells] == [(cell.name, cell.verdict) for cell in one.cells]
    assert figures(joined) == figures(one)
    assert variables_of_engines(Path("runs")) == variables_of_engines(Path("alone"))


def kill_the_actor(folder: Path, cluster: ThreeNodes) -> None:
    """Kill it once all that was measured came back but for the cell that still waits."""
    wait_for(lambda: len([*folder.glob("runs/*.cluster/cells/*/*/verdict.json")]) == CELLS - 1)
    actor = cluster.actor()
    assert actor is not None
    actor.kill()


def gives_back_and_stops(folder: Path, cluster: ThreeNodes, on: list[str], words: list[str]) -> None:
    """A cell whose node measures for somebody else waits nowhere: it is tried again once that one has ended.

    Ctrl-C then ends what is being measured and keeps it, a budget that is over begins nothing; --resume goes on.
    """
    (folder / "go").unlink()
    scenario_file(folder, "held", more="matrix: {output_tokens: [9]}")
    locks = [FileLock(folder / "locks" / node / "cpu.lock") for node in cluster.nodes]
    for lock in locks:
        lock.acquire()
    given_back: list[str] = []
    once = iter([KeyboardInterrupt])

    def progress(step: Step | str) -> None:
        if isinstance(step, str) and "given back" in step:
            given_back.append(step)
            for lock in locks:
                lock.release()
        elif isinstance(step, Step) and step.pair == 1 and (error := next(once, None)):
            raise error

    builds = Builds(tuple(words[4:7:2]), (words[8],), folder / "stopped")
    run = declared([Path("held.yaml")], builds, {"against": None, "seed": 1}, lambda _: None)
    with pytest.raises(InterruptedRunError, match="what was measured is in") as stopped:
        run_on(on[1], run, folder / "stopped", progress, float("inf"), Mixed(folder))
    assert "cpu is still in use by" in given_back[0]
    assert f"perfgate run --resume {run.name} --on {on[1]}" in str(stopped.value)
    (part,) = Path("stopped").glob("*.cluster/cells/*/*")
    measured = {trial.pair for record in read_records(part, read_run(part)) for trial in record.trials}
    assert {0, 1, 2} <= measured

    over = perfgate(folder, "--resume", run.name, "--runs", "stopped", "--budget", "0.0001", *on)
    assert (over.exit_code, "the budget is over" in over.stderr) == (ExitStatus.INTERRUPTED, True), over.output
    (folder / "go").touch()
    assert perfgate(folder, "--resume", run.name, "--runs", "stopped", *on).exit_code == ExitStatus.PASS


def variables_of_engines(runs: Path) -> set[tuple[str, ...]]:
    """The names of variables that engines saw, but for those that are of one trial."""
    files = [*runs.rglob("environment.json")]
    assert len(files) >= 16
    return {tuple(sorted(json.loads(file.read_text()))) for file in files}
