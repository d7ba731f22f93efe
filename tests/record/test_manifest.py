"""Manifests are checked against what the run folder keeps: nothing that decides is taken from run.json alone."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from git_project import GitProject
from hand_made import BOTH, scenario_file
from stored import lineage

from perfgate import gate
from perfgate.baseline.promotion import promote
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError, RecordError, UsageError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import read_record, write_record
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import make_plan
from perfgate.verify.verification import verify_path

SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells whose head is slower."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patched:
        for module in ("session", "station"):
            patched.setattr(f"perfgate.capture.{module}.end_orphans", lambda **_: ())
        patched.setenv("PERFGATE_STATE", str(folder / "state"))
        scenario = scenario_file(folder, more="matrix: {batch: [1, 2]}")
        finished = gate.run([scenario], BOTH, runs=folder / "runs", seed=1, collector=FakeCollector(SLOWER))
    assert finished.outcome.verdict == "regressed"
    shutil.rmtree(folder / "model")  # a run is judged anywhere, also where its model is not
    return finished.folder


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(measured, tmp_path / "run"))


def edit(file: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON file."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def widen(plan: Any, ignorable: str = "10%", must_catch: str = "50%") -> None:
    """Margins a hundred times as wide."""
    for cell in plan["cells"]:
        cell["gates"][0]["gate"] |= {"ignorable": ignorable, "must_catch": must_catch}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (widen, r"tiny\[batch=1\]: gates: not what the scenario in scenario/tiny.yaml declares"),
        (lambda plan: plan.update(alpha=1e-9), "declares alpha 1e-09"),
        (lambda plan: plan.update(beta=0.4), "and beta 0.4"),
        (lambda plan: plan["cells"].pop(), r"plans the cells tiny\[batch=1\], and its scenarios declare"),
        (lambda plan: plan["cells"].reverse(), "plans the cells"),
        (lambda plan: plan["cells"].clear(), "plans cells of ; kept are the scenarios tiny"),
        (lambda plan: plan["cells"][0]["measure"].update(iterations=1), "measure: not what"),
        (lambda plan: plan["cells"][0]["measure"].update(looks=[4]), "measure: not what"),
        (lambda plan: plan["cells"][0].update(gates=[]), "gates: not what"),
        (lambda plan: plan["cells"][0].update(model_digest="0"), "cell_id: not what"),
        (lambda plan: plan["cells"][1].update(scenario="../../x"), "cells.1.scenario: expected at most 63"),
    ],
    ids=["margins", "alpha", "beta", "fewer", "order", "none", "iterations", "looks", "no-gates", "model", "path"],
)
def test_a_plan_that_was_changed(run: Path, change: Callable[[Any], object], said: str) -> None:
    """A manifest whose plan is not that of the kept scenario is refused, whatever makes it milder."""
    edit(run / "run.json", lambda content: change(content["plan"]))

    with pytest.raises(RecordError, match=said):
        gate.judge_folder(run)


@pytest.mark.parametrize("name", ["/x", "../..", ".", "a/b", "A\n"])
def test_promotion_stays_in_its_folder(run: Path, tmp_path: Path, name: str) -> None:
    """A run that names its scenario by a path is no run, and nothing is written anywhere."""
    edit(run / "run.json", lambda content: [cell.update(scenario=name) for cell in content["plan"]["cells"]])

    with pytest.raises(RecordError, match=r"plan\.cells\.0\.scenario: expected at most 63"):
        promote(run, tmp_path / "baselines", reason="a release")

    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_promotion_by_the_scenarios_here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with margins of its own, in plan and kept scenario alike, is not promoted where scenarios are named."""
    monkeypatch.chdir(tmp_path)
    kept = run / "scenario" / "tiny.yaml"
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "ours.yaml").write_text(kept.read_text())
    words = ["baseline", "promote", str(run), "--side", "base", "--reason", "first", "--scenarios", "scenarios/*.yaml"]
    kept.write_text(kept.read_text().replace("0.1%", "10%").replace("0.5%", "50%"))
    edit(run / "run.json", lambda content: widen(content["plan"]))
    edit_records(run, lambda record: widen({"cells": [record["cell"]]}))
    assert gate.judge_folder(run).verdict == "pass"

    refused = CliRunner().invoke(main, words)
    shutil.copy(tmp_path / "scenarios" / "ours.yaml", kept)
    edit(run / "run.json", lambda content: widen(content["plan"], "0.1%", "0.5%"))
    edit_records(run, lambda record: widen({"cells": [record["cell"]]}, "0.1%", "0.5%"))
    taken = CliRunner().invoke(main, words)

    assert (refused.exit_code, "tiny.yaml: is not a copy of any scenario here" in refused.stderr) == (2, True)
    assert taken.exit_code == 0, taken.output


def test_gates_are_left_out_only_where_that_was_asked_for(run: Path) -> None:
    """A check of kernels has no gates, and then it has none in any cell."""
    edit(run / "run.json", lambda content: content.update(kernels_only=True))

    with pytest.raises(RecordError, match="gates, kernels: not what"):
        read_manifest(run)


def test_scenarios_that_are_not_there(run: Path) -> None:
    """A run without the text of its scenario, or with one more, cannot be told from one that was changed."""
    (run / "scenario" / "more.yaml").write_text((run / "scenario" / "tiny.yaml").read_text())
    with pytest.raises(RecordError, match="kept are the scenarios more, tiny"):
        read_manifest(run)
    shutil.rmtree(run / "scenario")
    with pytest.raises(RecordError, match=r"kept are the scenarios \(none\)"):
        read_manifest(run)


@pytest.mark.parametrize(("text", "said"), [("name: [", "no scenario of this version"), ("\udcff", "cannot be read")])
def test_scenarios_that_cannot_be_read(run: Path, text: str, said: str) -> None:
    """A kept scenario that is none is an error of ours that names it."""
    (run / "scenario" / "tiny.yaml").write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(RecordError, match=f"tiny.yaml: {said}"):
        read_manifest(run)


@pytest.mark.parametrize("changes", [{"seed": 2}, {"subjects": {"base": BOTH["base"]}}, {"cell": "looks"}])
def test_a_record_of_another_plan(run: Path, changes: dict[str, Any]) -> None:
    """A record that was sealed again with other looks, subjects or order is not that of its manifest."""
    file = min((run / "records").iterdir())
    record = read_record(file)
    if "cell" in changes:
        measure = record.cell.measure.model_copy(update={"looks": (4,)})
        changes = {"cell": record.cell.model_copy(update={"measure": measure})}
    write_record(file, record.model_copy(update=changes))

    with pytest.raises(RecordError, match="are not those of the run's manifest"):
        gate.judge_folder(run)


# --- perfgate verify


def results(path: Path) -> dict[str, str]:
    """What each check of a verification ends with."""
    return {one.what: one.result for one in verify_path(path)}


def test_verify(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run as it was measured fails no check, and what rests on the machine is never called ok."""
    monkeypatch.chdir(tmp_path)

    assert results(run) == {
        "plan": "ok", "records": "ok", "order": "ok", "pairs": "ok", "baselines": "ok", "files": "ok", "times": "ok",
        "verdict": "ok", "builds": "unknown", "git": "unknown", "measuring": "unknown",  # no interpreter was there
    }  # fmt: skip


def test_verify_scenarios_in_git(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the repository whose scenario was measured that is ok, and unknown once the scenario is another one.

    Line ends are git's to choose.
    """
    source = Path(read_manifest(run).plan.cells[0].source)
    project = GitProject(tmp_path / "project")
    project.commit({source.name: (run / "scenario" / "tiny.yaml").read_text().replace("\n", "\r\n")})
    edit(run / "run.json", lambda content: _move(content["plan"]["cells"], source))
    monkeypatch.chdir(project.folder)

    assert results(run)["git"] == "ok"
    project.commit({source.name: "another"})
    assert results(run)["git"] == "unknown"


def _move(cells: Any, source: Path, to: str = "") -> None:
    to = to or source.name
    for cell in cells:
        cell["source"] = to
        cell["gates"][0]["where"] = cell["gates"][0]["where"].replace(str(source), to)


def _moved(run: Path, to: str) -> None:
    """The run as if it had been made from a scenario of this path."""
    source = Path(read_manifest(run).plan.cells[0].source)
    edit(run / "run.json", lambda content: _move(content["plan"]["cells"], source, to))
    edit_records(run, lambda record: _move([record["cell"]], source, to))


def edit_records(run: Path, change: Callable[[Any], object]) -> None:
    """Change every record and seal it again, as anybody can."""
    for file in (run / "records").iterdir():
        content = json.loads(file.read_text())
        del content["digest"]
        change(content)
        file.write_text(json.dumps({**content, "digest": sha256_hex(canonical_json(content))}))


PARTIAL = """[core]
repositoryformatversion = 1
[extensions]
partialClone = origin
[remote "origin"]
promisor = true
url = ext::sh -c touch% {trap}
[protocol "ext"]
allow = always
"""
"""git's configuration of a repository that lacks objects, and fetches them by a program of its own."""


def test_a_repository_that_came_with_a_run(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run names a scenario in a repository of its own: git runs no program of that one, and nothing is ok by it."""
    own = run / "own"
    for folder in ("objects", "refs/heads"):
        (own / folder).mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "refs" / "heads" / "main").write_text("1" * 40 + "\n")
    (own / "config").write_text(PARTIAL.format(trap=tmp_path / "trap"))
    baseline = own / "cell.json"
    baseline.write_text(lineage([[0.0, 0.001]]).text)
    _moved(run, "run/own/tiny.yaml")
    GitProject(tmp_path).commit({"README": "here"})
    monkeypatch.chdir(tmp_path)
    assert results(run)["git"] == "unknown"
    _moved(run, "tiny.yaml")
    monkeypatch.chdir(own)

    assert results(run)["git"] == "unknown"
    assert results(baseline)["git"] == "unknown"
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["a\0b.yaml", "bytes.yaml", "../tiny.yaml", "x\n  ok       git: signed"])
def test_names_of_scenarios_that_no_scenario_has(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Whatever a run calls its scenario is a check that cannot tell, on one line."""
    project = GitProject(tmp_path / "project")
    (project.folder / "bytes.yaml").write_bytes(b"\xff\xfe")
    project.commit({})
    _moved(run, name)
    monkeypatch.chdir(project.folder)

    ended = CliRunner().invoke(main, ["verify", str(run)])

    assert next(line for line in ended.stdout.splitlines() if " git: " in line).startswith("  unknown  git: not what")
    assert len(ended.stdout.splitlines()) == 1 + len(results(run))


def test_verify_takes_a_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is named as everywhere else: by its folder, by the folder's name or by ``latest``."""
    monkeypatch.chdir(run.parent)

    by_name = CliRunner().invoke(main, ["verify", "--runs", str(run.parent), run.name])
    latest = CliRunner().invoke(main, ["verify", "--runs", str(run.parent), "latest"])
    nobody = CliRunner().invoke(main, ["verify", "--runs", str(run.parent), "nobody"])

    assert by_name.stdout.splitlines()[1:] == latest.stdout.splitlines()[1:] != []
    assert (nobody.exit_code, "holds no run of that name" in nobody.stderr) == (2, True)


def _swapped(record: Any) -> None:
    for trial in record["trials"]:
        trial["subject"] = {"base": "head", "head": "base"}[trial["subject"]]


def _without(pair: int) -> Callable[[Any], None]:
    return lambda record: record.update(trials=[trial for trial in record["trials"] if trial["pair"] != pair])


def _elsewhere(record: Any) -> None:
    record["visits"].append(json.loads(json.dumps(record["visits"][0])))
    record["visits"][1]["machine"]["cpu"] = "another"
    record["trials"][-1]["visit"] = 1


def _faster_head(record: Any) -> None:
    for trial in record["trials"]:
        if trial["subject"] == "head":
            for one in trial["iterations"]:
                one["itl_ns"] = [round(ns / 1.01) for ns in one["itl_ns"]]


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (_swapped, "order", "the seed draws the other side for its place"),
        (_without(0), "order", "timed pair 0 is missing"),
        (_elsewhere, "order", "visits of two machines: cpu"),
        (lambda record: record["trials"][0].update(visit=9), "order", "names visit 9"),
        (lambda record: record["trials"][-1].update(visit=-1), "order", "names visit -1"),
        (lambda record: record.update(trials=[*record["trials"], record["trials"][-1]]), "order", "number of another"),
        (lambda record: [trial.update(index=0) for trial in record["trials"]], "order", "the number of another one"),
        (lambda record: record["trials"][2]["iterations"].pop(), "order", "holds 1 iterations, and its cell takes 2"),
        (lambda record: record["trials"][2]["iterations"][0].update(output_tokens=9), "order", "batch or length"),
        (lambda record: record.update(stopped={"code": "x`\n::add-mask::", "text": ""}), "records", "stopped.code: "),
        (lambda record: record["trials"][2]["iterations"][0]["ttft_ns"].append(1), "records", "for each request"),
        (_faster_head, "times", "not those of the raw timelines, in trials "),
    ],
    ids=["swapped", "dropped", "machine", "visit", "before", "twice", "one-number", "fewer", "length", "code", "ragged",
         "values"],
)  # fmt: skip
def test_verify_finds_what_cannot_have_been_measured(
    run: Path, change: Callable[[Any], object], check: str, said: str
) -> None:
    """A record that was edited and sealed again does not fit the seed, its cell or the raw timelines.

    Nothing is judged or compared that cannot have been taken; times are told by the raw timelines alone.
    """
    edit_records(run, change)

    (found,) = [one for one in verify_path(run) if one.what == check]
    assert (found.result, said in found.text) == ("FAILED", True), found.text
    for words in (["judge", str(run)], ["compare", f"{run}:base", f"{run}:head"]):
        ended = CliRunner().invoke(main, words)
        assert (ended.exit_code == 2, said in ended.stderr) == (check != "times", check != "times"), ended.stderr


def test_verify_says_that_a_run_has_not_come_to_its_end(run: Path) -> None:
    """Pairs cut off at the end, with their files and the verdict, leave a run that was stopped: that is said loudly."""
    edit_records(run, _without(5))
    (run / "verdict.json").unlink()

    (found,) = [one for one in verify_path(run) if one.what == "pairs"]

    lacking = "tiny[batch=1] has 5 of 6 timed pairs; tiny[batch=2] has 5 of 6 timed pairs"
    assert found.result == "unknown"
    assert found.text == f"INCOMPLETE: {lacking}. The run was stopped, or cut off at its end"


def test_verify_a_run_without_a_timed_trial(tmp_path: Path) -> None:
    """What is not there is not called ok: neither times nor files of no trial."""
    with pytest.raises(InterruptedRunError):
        gate.run([scenario_file(tmp_path)], BOTH, runs=tmp_path, budget_s=0, collector=FakeCollector(SLOWER))
    (folder,) = tmp_path.glob("tiny-*")

    told = {one.what: (one.result, one.text) for one in verify_path(folder)}

    assert told["times"] == ("unknown", "no timed trial was taken")
    assert told["files"] == ("unknown", "the records name none")


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"[]\n"), gzip.compress(b"{}\n" * 9)],
    ids=["empty", "bare", "list", "object"],
)
def test_verify_a_damaged_timeline(run: Path, data: bytes) -> None:
    """One that cannot be read does not tell the record's times; where all were left out of a copy nobody knows."""
    max(run.glob("trials/*/timeline.jsonl.gz")).write_bytes(data)

    assert results(run)["times"] == "FAILED"
    shutil.rmtree(run / "trials")
    assert results(run)["times"] == "unknown"


@pytest.mark.parametrize(("waited", "result"), [(True, "ok"), (False, "FAILED")])
def test_verify_a_warm_up_that_was_longer(run: Path, *, waited: bool, result: str) -> None:
    """A timeline has more warm-up than was declared where its trial says that it waited for the GPU, else never."""
    file = max(run.glob("trials/*/timeline.jsonl.gz"))
    lines = gzip.decompress(file.read_bytes()).splitlines()
    longer = {**json.loads(lines[0]), "iteration": len(lines), "warmup": True}
    file.write_bytes(gzip.compress(b"\n".join([json.dumps(longer).encode(), *lines]) + b"\n"))
    if waited:
        edit_records(run, lambda record: [trial.update(figures={"settle_ns": 1}) for trial in record["trials"]])

    assert results(run)["times"] == result


@pytest.mark.parametrize(
    ("damage", "failed"),
    [
        (lambda run: edit(run / "run.json", lambda content: widen(content["plan"])), {"plan"}),
        (lambda run: edit(min((run / "records").iterdir()), lambda content: content.update(seed=9)),
         {"records", "verdict"}),
        (lambda run: (run / "verdict.json").write_text("{}"), {"verdict"}),
        (lambda run: (run / "verdict.json").write_text("cut"), {"verdict"}),
    ],
)  # fmt: skip
def test_verify_finds(run: Path, damage: Callable[[Path], object], failed: set[str]) -> None:
    """What was changed is named by its check, and the command ends with 2."""
    damage(run)

    assert {what for what, result in results(run).items() if result == "FAILED"} == failed
    ended = CliRunner().invoke(main, ["verify", str(run)])
    assert ended.exit_code == 2
    assert all(f"  FAILED   {what}: " in ended.stdout for what in failed)


def test_verify_a_verdict_of_another_version(run: Path) -> None:
    """Another version words its report otherwise, so the verdict alone can be compared; another verdict is found."""
    file = run / "verdict.json"
    file.write_text(json.dumps({"perfgate": "0.0.1", "verdict": "regressed"}))
    assert results(run)["verdict"] == "unknown"

    file.write_text(json.dumps({"perfgate": "0.0.1", "verdict": "pass"}))
    assert results(run)["verdict"] == "FAILED"


def test_verify_a_baseline(tmp_path: Path) -> None:
    """The chain of a baseline is checked by itself, and against the repository where there is one."""
    file = tmp_path / "cell.json"
    file.write_text(lineage([[0.0, 0.001], [0.0, 0.002]]).text)
    assert results(file) == {"chain": "ok", "git": "unknown", "records": "unknown"}

    project = GitProject(tmp_path)
    project.commit({})
    file.write_text(lineage([[0.0, 0.003]]).text)
    assert results(file) == {"chain": "ok", "git": "FAILED", "records": "unknown"}
    file.write_text(file.read_text().replace("day 1", "day 2"))
    assert results(file)["chain"] == "FAILED"


def test_verify_nothing(tmp_path: Path) -> None:
    """What is neither a run nor a baseline is an error."""
    with pytest.raises(RecordError, match="expected a run folder"):
        results(tmp_path)


def test_scenarios_of_one_name(tmp_path: Path) -> None:
    """Two scenarios of one name cannot be kept beside each other, so they are no run."""
    (tmp_path / "other").mkdir()
    one, two = scenario_file(tmp_path), scenario_file(tmp_path / "other", more="description: another")

    with pytest.raises(UsageError, match=r"tiny\.yaml has the same name, tiny"):
        make_plan((load(one), load(two)), 0)
