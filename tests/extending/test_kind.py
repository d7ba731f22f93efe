"""A kind of trial is added: a folder of three files takes, keeps, judges and shows it; nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stub_engine import bare_python

ROOT = Path(__file__).parents[2]
TABLE = """
[kinds.weighed]
place = 9
sampling = "measure"
instrument = "perfgate.weighing.weighed:Scales"
payload = {weight = "perfgate.weighing.weight:Weight"}
checks = "perfgate.weighing.weighed:judge_weighed"
sections = {after_notes = "perfgate.weighing.weighed:of_weighed"}
[kinds.weighed.outcome.heavier]
model = "perfgate.weighing.weight:Weight"
of = "perfgate.weighing.weighed:heavier"
"""
MODEL = """
from perfgate.models import Frozen


class Weight(Frozen):
    grams: int
"""
ROOM = '''
"""Weighs what an engine answers."""

from perfgate.capture.instruments import Instrument
from perfgate.judge.outcome import Finding
from perfgate.models import Note
from perfgate.report.document import Section
from perfgate.weighing.weight import Weight


class Scales(Instrument):
    name, grams = "weighing", None

    def drive(self, engine, say):
        for iteration in super().drive(engine, say):
            self.grams = iteration.elapsed_ns // 1000
        yield from ()

    def fields(self):
        return {"startup": None, "weight": Weight(grams=self.grams)}


def heavier(evidence):
    sides = evidence.held("weight")
    if all(sides.get(side) for side in ("base", "head")):
        return Weight(grams=max(0, sides["head"][0].grams - sides["base"][0].grams))


def judge_weighed(evidence):
    more = heavier(evidence)
    if more is None:
        yield Finding("not-measured", (Note(code="not-started", text="a side was not weighed"),))
    elif more.grams > 1000:
        yield Finding("regressed", (Note(code="work-added", text=f"{more.grams} g more"),))
    else:
        yield Finding("pass")


def of_weighed(cell):
    yield Section(lead="weight", lines=(f"{cell.fact('heavier').grams} g more",))
'''
RUN = """
import json, pathlib, sys
from hand_made import scenario_file
from perfgate import gate
from perfgate.judge.outcome import verdict_json
from perfgate.report.outcome_document import outcome_document
from perfgate.report.text import to_text
from perfgate.scenario.drivers import DRIVERS, EngineDriver
from perfgate.scenario.subject import Subject
import perfgate.doctor.preflight

folder, python = pathlib.Path(sys.argv[1]), sys.argv[2]
DRIVERS["vllm"] = EngineDriver(name="vllm", place=0, starts="toy_driver:ToyDriver")
perfgate.doctor.preflight.locate = lambda *_: "toys are in no environment"
builds = {side: Subject(python=python, args={"step_us": us}) for side, us in (("base", 1000), ("head", 2000))}
gates = "{metric: itl_median, ignorable: 500%, must_catch: 900%}"
finished = gate.run([scenario_file(folder, gates=gates)], builds, runs=folder / "runs", seed=1)
again = gate.judge_folder(finished.folder)
assert verdict_json(again) == verdict_json(finished.outcome)
told = {"outcome": json.loads(verdict_json(again)), "text": to_text(outcome_document(again))}
print(json.dumps(told | {"folder": str(finished.folder)}))
"""
JUDGE = "import pathlib, sys; from perfgate import gate; gate.judge_folder(pathlib.Path(sys.argv[1]))"

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of perfgate with the room."""
    copied = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "perfgate", copied / "perfgate", ignore=shutil.ignore_patterns("__pycache__"))
    room = copied / "perfgate" / "weighing"
    room.mkdir()
    (room / "room.toml").write_text(TABLE)
    (room / "weight.py").write_text(MODEL)
    (room / "weighed.py").write_text(ROOM)
    return copied


def said(tree: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a program says that runs with the copy."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def test_a_kind_takes_a_run_to_its_verdict(tree: Path, tmp_path: Path) -> None:
    """One pair of it is taken, kept, judged, told again from the record; without its folder the record is refused."""
    ran = said(tree, RUN, str(tmp_path), bare_python(tmp_path / "env"))
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    (cell,) = told["outcome"]["cells"]
    assert (cell["verdict"], cell["gates"][0]["verdict"], cell["weighed_pairs"]) == ("regressed", "pass", 1)
    assert f"{cell['heavier']['grams']} g more" in told["text"]

    without = said(ROOT, JUDGE, told["folder"])
    assert without.returncode == 1
    assert "expected one of timed, traced, counted, called, sampled" in without.stderr
