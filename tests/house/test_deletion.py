"""Optional rooms can be deleted: nothing of the core needs them, and what does need them names them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from decode_steps import decode, traces
from hand_made import cell, record, scenario_file, spread, trials
from perfgate_process import PROGRAM, stub_words
from removed_rooms import ROOT, called, without
from test_rooms import CORE, OPTIONAL

from perfgate.record.run_record import write_record
from perfgate.rooms import SHIPPED
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import resolve_cells

LOOK = """
import sys
from click.testing import CliRunner
from perfgate import rooms
from perfgate.cli.main import main
removed, commands = (set(word.split(",")) for word in sys.argv[1:])
listed = CliRunner().invoke(main, ["--help"]).stdout
for command in commands - {""}:
    assert f"\\n  {command} " not in listed, command
    refused = CliRunner().invoke(main, [command])
    assert refused.exit_code == 2, refused.stderr
    assert any(f"'{room}'" in refused.stderr for room in removed) and " not here" in refused.stderr, refused.stderr
for command in ("check", "compare", "init", "judge", "list", "report", "run"):
    assert f"\\n  {command} " in listed, command
assert CliRunner().invoke(main, ["run", "--help"]).exit_code == 0
"""
"""Asks the command line for what is there and what is not; that the core imports no room is tested by its imports."""

WHICH = (*OPTIONAL, "all of them")
FOLDERS = [name for name in CORE if (ROOT / "tests" / name).is_dir()]
QUICK = ["stats", "counters", "metrics", "record"]
"""Those of which a change runs the tests, without one room; the night runs all, without each."""


def in_turn() -> str:
    """The room whose turn it is, by the hash of the commit: a run of the same commit takes the same room."""
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return WHICH[int(commit or "0", 16) % len(WHICH)]


def refused_by_name(tree: Path, rooms: Iterable[str]) -> None:
    """What the rooms brought is not there, or names them."""
    brought = [entry.partition(".") for room in rooms for entry in SHIPPED[room]]
    commands = ",".join(name for kind, _, name in brought if kind == "commands")
    looked = called(tree, "-c", LOOK, ",".join(rooms), commands)
    assert looked.returncode == 0, looked.stderr


@pytest.mark.parametrize("room", OPTIONAL)
def test_a_room_can_be_deleted(room: str, tmp_path: Path) -> None:
    """Without its folder the command line has all else, and what it brought is refused by name."""
    refused_by_name(without([room], tmp_path / "tree"), [room])


def test_the_core_alone_measures_and_judges(tmp_path: Path) -> None:
    """Without any optional room a run on the stand-in engine passes, and is judged, listed, reported and compared."""
    tree = without(OPTIONAL, tmp_path / "tree")
    refused_by_name(tree, OPTIONAL)
    words = stub_words(tmp_path)  # with a perfgate.toml, which nothing of the core reads
    refused = called(tree, "-m", "perfgate", "run", *words, here=tmp_path)
    assert (refused.returncode, "the room 'project' is not here" in refused.stderr) == (2, True), refused.stderr
    (tmp_path / "perfgate.toml").unlink()
    refused = called(tree, "-m", "perfgate", "run", *words, "--against", "baseline", here=tmp_path)
    assert (refused.returncode, "the room 'baseline' is not here" in refused.stderr) == (2, True), refused.stderr

    ran = called(tree, "-m", "perfgate", "run", *words, here=tmp_path)

    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    for words in (
        ["judge"],
        ["list"],
        ["report"],
        ["explain"],
        ["compare", f"{run}:base", f"{run}:head", "--exit-zero"],
    ):
        ended = called(tree, "-m", "perfgate", *words, here=tmp_path)
        assert ended.returncode == 0, (words, ended.stderr)


def test_what_a_server_needs_is_refused_by_name(tmp_path: Path) -> None:
    """Without the room of load, a scenario, a gate, a record and a subject of a server are refused, not judged."""
    served = ROOT / "scenarios" / "cpu-tiny-server.yaml"
    (cell,) = resolve_cells(load(served))
    gated = scenario_file(tmp_path, gates="{metric: goodput, slo: {ttft: 1s}, ignorable: 1%, must_catch: 5%}")
    plain = scenario_file(tmp_path, "plain")
    tree = without(["load"], tmp_path / "tree")
    read = "from perfgate.scenario.plan import Cell; import sys; Cell.model_validate_json(sys.argv[1])"

    for words, what in (
        (["-m", "perfgate", "check", str(served)], "driver: server"),
        (["-m", "perfgate", "check", str(gated)], "goodput"),
        (["-m", "perfgate", "run", str(gated), "--base", "url=http://127.0.0.1:9"], "goodput"),
        (["-m", "perfgate", "run", str(plain), "--base", "url=http://127.0.0.1:9"], "server_url"),
        (["-c", read, cell.model_dump_json()], "driver: server"),
    ):
        refused = called(tree, *words, here=tmp_path)
        assert refused.returncode in (1, 2), refused.stderr
        assert f"{what}: the room 'load' is not here" in refused.stderr, (words, refused.stderr)


@pytest.mark.parametrize("room", ["trace", "counters", "kernels"])
def test_what_traces_and_counters_are_for_is_refused_by_name(room: str, tmp_path: Path) -> None:
    """Without the room scenarios and records that need it end with 2; a record of timed trials alone is compared."""
    tree, gated = without([room], tmp_path / "tree"), "{{metric: {}, role: gemm, ignorable: 1%, must_catch: 3%}}"
    declared = {
        "traced": scenario_file(tmp_path, "traced", more="kernels: {traced: {iterations: 2}}"),
        "counted": scenario_file(tmp_path, "counted", more="counters: [{role: gemm, metrics: {registers: same}}]"),
        "by-role": scenario_file(tmp_path, "by-role", gates=gated.format("kernel_time_per_step")),
        "by-counter": scenario_file(tmp_path, "by-counter", gates=gated.format("dram_bytes")),
    }
    (tmp_path / "perfgate.toml").unlink()
    step = [decode([("gemm", "a", 4000)])]
    for name, taken in (("timed", trials(spread(0.0, 0.0002, 4))), ("traced", traces(step, step))):
        write_record(tmp_path / f"{name}.json", record(cell(), taken))

    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        return called(tree, "-m", "perfgate", *words, here=tmp_path)

    refused = {name: ended("check", str(file)) for name, file in declared.items()}
    refused["traced record"] = ended("compare", "traced.json:base", "traced.json:head")
    kept = ended("compare", "timed.json:base", "timed.json:head", "--exit-zero")

    assert kept.returncode == 0, kept.stderr
    for name, process in refused.items():
        assert (process.returncode, f"room '{room}' is not here" in process.stderr) == (2, True), (name, process.stderr)


def test_a_run_goes_on_without_shards(tmp_path: Path) -> None:
    """The room of baselines, which looks for pairs beside a run that goes on, does without that of shards."""
    tree = without(["fleet"], tmp_path / "tree")
    words = stub_words(tmp_path)
    (tmp_path / "perfgate.toml").unlink()
    begun = called(tree, "-c", PROGRAM, "0.001", "run", *words, "--quiet", here=tmp_path)
    assert begun.returncode == 0, begun.stderr

    resumed = called(tree, "-c", PROGRAM, "0.001", "run", "--resume", "latest", "--quiet", here=tmp_path)

    assert resumed.returncode == 0, resumed.stderr


def test_a_run_that_could_not_be_judged_does_not_go_on(tmp_path: Path) -> None:
    """Where baselines were removed nothing more is measured of a run that is held against them."""
    tree = without(["baseline"], tmp_path / "tree")
    words = stub_words(tmp_path)
    (tmp_path / "perfgate.toml").unlink()
    begun = called(
        ROOT, "-c", PROGRAM, "0.001", "run", *words, "--against", "baseline", "--budget", "0.001", here=tmp_path
    )
    assert begun.returncode == 130, begun.stderr

    resumed = called(tree, "-c", PROGRAM, "0.001", "run", "--resume", "latest", here=tmp_path)

    assert (resumed.returncode, "the room 'baseline' is not here" in resumed.stderr) == (2, True), resumed.stderr
    assert not [*tmp_path.glob("runs/*/records/*")]


@pytest.mark.parametrize(
    ("room", "folders"), [(in_turn(), QUICK), *(pytest.param(room, FOLDERS, marks=pytest.mark.slow) for room in WHICH)]
)
def test_tests_of_the_core_pass_without_it(room: str, folders: list[str], tmp_path: Path) -> None:
    """Every test of the core that does not need the room can be imported where it was removed, and passes."""
    tree = without(OPTIONAL if room not in OPTIONAL else [room], tmp_path / "tree")
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not engine and not gpu")

    collected = called(tree, *pytest_words, "--collect-only", *(f"tests/{name}" for name in FOLDERS))
    ended = called(tree, *pytest_words, *(f"tests/{name}" for name in folders))

    assert collected.returncode == 0, collected.stdout[-5000:]
    assert ended.returncode == 0, ended.stdout[-5000:]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[commands", "the room weather is broken"),
        ("needs = 'kernels'", "needs: expected a list of names of rooms"),
        ("[commands.weather]\nrun = 'perfgate.weather:weather'", "commands.weather: expected run and help"),
        ("[kinds.timed]\nplace = 0", "kinds.timed: another room brings this too"),
        ("commands = 3", "commands: expected entries by name"),
    ],
)
def test_a_broken_table_is_refused(table: str, said: str, tmp_path: Path) -> None:
    """A room that would be lost, or take the place of another, ends every command with 2 and its file."""
    tree = without((), tmp_path / "tree")
    (tree / "perfgate" / "weather").mkdir()
    (tree / "perfgate" / "weather" / "room.toml").write_text(table)

    ended = called(tree, "-m", "perfgate", "--help")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[kinds.weighed]\nplace = 9\n", "the room of the kind weighed is broken"),
        (
            "[metrics.rain]\nunit = 's'\nbetter = 'lower'\nmeaning = 'x'\nsummarise = 'math:floor'\nafter = 'sun'",
            "metrics.rain",
        ),
    ],
)
def test_an_entry_that_lacks_something_is_refused(table: str, said: str, tmp_path: Path) -> None:
    """What a kind of trial must say, and the metric that another stands behind, are asked for by name."""
    tree = without((), tmp_path / "tree")
    (tree / "perfgate" / "weather").mkdir()
    (tree / "perfgate" / "weather" / "room.toml").write_text(table)

    ended = called(tree, "-m", "perfgate", "check", "none.yaml")

    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
