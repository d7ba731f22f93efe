"""A new stored reference, as docs/extending.md describes it: a folder with its table and one module."""

from __future__ import annotations

from pathlib import Path

from removed_rooms import ROOT, called, without

TABLE = """
[references]
golden = "perfgate.golden.stored"
"""
STORED = '''
"""Files that say how long a decode step may take, in microseconds."""

from dataclasses import dataclass

from perfgate.judge.cell_verdict import judge_cells, judge_together
from perfgate.judge.evidence import Evidence, RecordSide
from perfgate.judge.outcome import Finding
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Artifact
from perfgate.models import Note


def recognises(file):
    return file.suffix == ".golden"


def found_for(run, subjects, against, profiles):
    def keep(folder):
        copy = folder / against.name
        copy.write_bytes(against.read_bytes())
        return {cell.cell_id: (Artifact.of(copy, folder),) for cell in run.cells}

    return {"against": keep}


@dataclass(frozen=True, kw_only=True)
class Held(Evidence):
    most_us: float

    @property
    def unjudged(self):
        if not self.sides or self.stops:
            return self.stopped
        steps_us = [METRICS["itl_median"].summarise(trial) * 1e6 for trial in self.trials("timed")["head"]]
        if max(steps_us) <= self.most_us:
            return Finding("pass")
        text = f"a step takes {max(steps_us):.0f} us, more than {self.most_us:.0f} us"
        return Finding("regressed", (Note(code="work-added", text=text),))


def judged(folder, run, records):
    evidence = []
    for cell in run.plan.cells:
        (copy,), record = run.against[cell.cell_id], records.get(cell.cell_id)
        sides = {"head": RecordSide(record, run.alone or "head")} if record else {}
        evidence.append(Held(cell=cell, sides=sides, most_us=float((folder / copy.path).read_text())))
    return judge_cells(run.name, run.plan, judge_together(evidence, run.plan))
'''
RUN = """
import pathlib, sys
sys.path.insert(0, "tests")
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, scenario_file
from perfgate import gate

folder = pathlib.Path(sys.argv[1])
for name, most_us in (("low", 1), ("high", 10**9)):
    golden = folder / f"{name}.golden"
    golden.write_text(str(most_us))
    finished = gate.run([scenario_file(folder)], {"head": BASE}, runs=folder / "runs", seed=1, against=golden,
                        collector=FakeCollector(FakeSpec()))
    golden.unlink()
    assert gate.judge_folder(finished.folder) == finished.outcome
    print(finished.outcome.verdict, *(note.code for note in finished.outcome.cells[0].reasons))
"""


def test_a_reference_is_a_folder(tmp_path: Path) -> None:
    """A head alone is held against its file, and judged again from the run's own copy when the file is gone."""
    tree = without((), tmp_path / "tree")
    (tree / "perfgate" / "golden").mkdir()
    for name, text in (("room.toml", TABLE), ("stored.py", STORED), ("__init__.py", '"""Golden."""\n')):
        (tree / "perfgate" / "golden" / name).write_text(text)

    ran = called(tree, "-c", RUN, str(tmp_path))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["regressed work-added", "pass"]
    for folder in (tmp_path / "runs").iterdir():  # without the room
        assert called(ROOT, "-m", "perfgate", "judge", str(folder), here=tmp_path).returncode == 2
