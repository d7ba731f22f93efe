"""What one visit of a build measured, as a baseline keeps it: value by value, and nothing that names a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator, JsonValue

from perfgate.judge.cautions import gpu_outcome
from perfgate.judge.cell_facts import GpuOutcome
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.fingerprint import Machine
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.trial import KINDS, Side, Trial
from perfgate.models import Frozen
from perfgate.record.run_record import Record

DIGITS = 10
"""Significant digits kept of a value: far below what any clock resolves, and short enough to be read in a diff."""
ONE_STATE = timedelta(hours=6)
"""Visits that begin within so long of one another may meet one state of the machine: fewer than the hours between two
nights."""


class Build(Frozen):
    """The subject that was measured, by what can be told of it without its machine's paths.

    Args:
        versions: Its packages as measured, vLLM's commit among them where the package tells.
        args: Engine arguments that it overrides.
        env: Names of the variables that it sets; values may be secrets.
        path: Names of the folders in front of its packages, but for those that its source brings.
        source: What perfgate built it from: commit, digest of uncommitted changes, and digest of the recipe.
    """

    versions: dict[str, str] = {}
    args: dict[str, JsonValue] = {}
    env: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, record: Record, side: Side) -> Build:
        """The subject of one side of a record, as its trials found it."""
        subject = record.subjects[side]
        made = subject.built_from
        folders = map(Path, subject.path)
        own = [folder for folder in folders if made is None or not folder.is_relative_to(made.folder)]
        trials = [trial for kind in KINDS for trial in record.judged_trials(side, kind)]
        return cls(
            versions=next((trial.versions for trial in trials if trial.versions), {}),
            args=dict(subject.args),
            env=tuple(sorted(subject.env)),
            path=tuple(folder.name for folder in own),
            source=f"{made.name} by {made.recipe[:12]}" if made else "",
        )

    def same(self, other: Build) -> bool:
        """Whether this certainly is that build: a folder or variable may hold anything, so with one it never is."""
        opaque = (*self.env, *self.path, *other.env, *other.path)
        return not opaque and bool(self.versions) and self == other


def _instant(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("expected a time zone")
    return text


class BaselineVisit(Frozen):
    """What one visit measured.

    Args:
        t0_utc: When it began, ISO 8601 in UTC.
        values: Restart by restart, in order, in base units, by name of the metric; a metric that some of the restarts
            do not carry is left out.
        gpu: What its GPUs did; ``None`` on the CPU.
        outputs: Digest of the tokens generated, by iteration; empty where restarts differ in them.
        card: Digest of its GPUs' ids and the baseline's salt; empty where they are unknown, or there is none.
    """

    t0_utc: Annotated[str, AfterValidator(_instant)]
    values: dict[str, Annotated[tuple[float, ...], MinLen(1)]]
    gpu: GpuOutcome | None = None
    outputs: str = ""
    card: str = ""

    def near(self, other: BaselineVisit) -> bool:
        """Whether the machine's state may have been that of the other one."""
        return abs(datetime.fromisoformat(self.t0_utc) - datetime.fromisoformat(other.t0_utc)) <= ONE_STATE

    def is_the(self, other: BaselineVisit) -> bool:
        """Whether both are the same visit: begun in the same second, and alike in every metric that both carry."""
        shared = self.values.keys() & other.values.keys()
        alike = all(self.values[name] == other.values[name] for name in shared)
        return self.t0_utc == other.t0_utc and bool(shared) and alike


def card_of(machines: Iterable[Machine], salt: str) -> str:
    """The GPUs of visits, as a digest from which nobody learns which they are; empty without a GPU or without salt."""
    devices = sorted({gpu.uuid for machine in machines for gpu in machine.gpus})
    return sha256_hex(" ".join([salt, *devices]))[:12] if devices and salt else ""


def visits_of(record: Record, side: Side, salt: str) -> Iterator[BaselineVisit]:
    """Every visit of a record in which one side has a value, in order of time."""
    gated = {gate.gate.measured.name: gate.gate.measured for gate in record.cell.gates}
    metrics = {**METRICS, **gated}.values()
    for number, visit in enumerate(record.visits):
        trials = {kind: [t for t in record.judged_trials(side, kind) if t.visit == number] for kind in KINDS}
        values = {metric.name: _values(metric, trials[metric.kind]) for metric in metrics}
        if any(values.values()):
            seen = trials["timed"] or trials["traced"]
            yield BaselineVisit(
                t0_utc=visit.t0_utc,
                values={name: restarts for name, restarts in sorted(values.items()) if restarts},
                gpu=gpu_outcome(seen),
                outputs=outputs(seen),
                card=card_of([visit.machine], salt),
            )


def _values(metric: Metric, trials: Sequence[Trial]) -> tuple[float, ...]:
    values = [metric.summarise(trial) for trial in trials]
    known = tuple(float(f"{value:.{DIGITS}g}") for value in values if value is not None)
    return known if len(known) == len(trials) else ()


def outputs(trials: Sequence[Trial]) -> str:
    """A digest of the tokens that trials of one kind generated; empty where they do not agree."""
    rows = {tuple(iteration.tokens_digest for iteration in trial.iterations) for trial in trials}
    return sha256_hex(canonical_json(list(rows.pop())))[:16] if len(rows) == 1 else ""
