"""What a cell's figures are of: subjects, model, workload, machine and date, so that a report can be read by itself."""

from __future__ import annotations

from collections.abc import Mapping

from perfgate.judge.cell_facts import Setting, SubjectSetting
from perfgate.judge.evidence import Evidence
from perfgate.machine.fingerprint import Machine
from perfgate.metrics.sides import Side
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import SHOWN, Subject
from perfgate.scenario.subject_words import words


def setting_of(evidence: Evidence) -> Setting | None:
    """What a cell's evidence is of; ``None`` where no trial was taken."""
    if not evidence.sides:
        return None
    visits = [visit for side in evidence.sides.values() for visit in side.record.visits]
    subjects = {name: side.record.subjects[side.name] for name, side in evidence.sides.items()}
    of, chosen = evidence.record.cell, evidence.record.chosen
    return Setting(
        run=evidence.run,
        scenario=of.source,
        envelope=of.kernels is not None and of.kernels.declares_envelope,
        model=_model(of),
        **of.work.setting(),
        machines=tuple(dict.fromkeys(_machine(visit.machine) for visit in visits)),
        begun_utc=min((visit.t0_utc for visit in visits), default=""),
        subjects={side: _subject(side, subjects, _files(evidence, side)) for side in subjects},
        iterations=f"{chosen.iterations} iterations a trial: {chosen.reason}" if chosen else "",
    )


def _model(cell: Cell) -> str:
    model = cell.engine.model
    if model.hub is not None:
        return f"{model.hub} at {(model.revision or '')[:12]}"
    return f"{model.config}, dummy weights" if model.config is not None else str(model.path)


def _machine(machine: Machine) -> str:
    if not machine.gpus:
        return f"{machine.cpu}, {machine.cores} logical cores"
    names = [gpu.name for gpu in machine.gpus]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return f"{counted}, driver {machine.driver}" if machine.driver else counted


def _files(evidence: Evidence, side: Side) -> str:
    """Digits that name the files of a side at the last visit; empty where they were not read."""
    visits = evidence.sides[side].record.visits
    read = visits[-1].builds.get(evidence.head if evidence.head and side == "head" else side) if visits else None
    return read.digest[:SHOWN] if read else ""


def _subject(side: Side, subjects: Mapping[Side, Subject], files: str) -> SubjectSetting:
    """The head by what it has of its own, as it was named beside the base."""
    subject, base = subjects[side], subjects.get("base")
    source = subject.built_from
    return SubjectSetting(
        words=words(subject, base if side == "head" else None),
        ref=source.ref if source else "",
        revision=source.name if source else "",
        title=source.title if source else "",
        files=files,
    )
