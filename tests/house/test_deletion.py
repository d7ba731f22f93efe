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


@pytest.mark.slow
@pytest.mark.parametrize("room", [*OPTIONAL, "all of them"])
def test_tests_of_the_core_pass_without_it(room: str, tmp_path: Path) -> None:
    """Every test that does not need the room passes where it was removed."""
    tree = without(OPTIONAL if room not in OPTIONAL else [room], tmp_path / "tree")
    folders = [f"tests/{name}" for name in CORE if (tree / "tests" / name).is_dir()]

    ended = called(
        tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not engine and not gpu", *folders
    )

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
