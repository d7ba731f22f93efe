"""What one visit of a build measured, as a baseline keeps it: value by value, and nothing that names a device."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import starmap
from pathlib import Path
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator, Field, JsonValue

from perfgate.baseline.pairs_in_states import PairsInStates, ratio
from perfgate.judge.cautions import gpu_outcome
from perfgate.judge.cell_facts import GpuOutcome
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import KINDS, Kind, Trial
from perfgate.models import Frozen
from perfgate.record.run_record import Record, Visit
from perfgate.scenario.subject import Subject

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
        trials = [trial for kind in KINDS for trial in record.judged_trials(side, kind)]
        versions = next((trial.versions for trial in trials if trial.versions), {})
        return cls.asked_for(record.subjects[side], versions)

    @classmethod
    def asked_for(cls, subject: Subject, versions: dict[str, str]) -> Build:
        """A subject, and the packages that were found in it."""
        made, folders = subject.built_from, map(Path, subject.path)
        return cls(
            versions=versions,
            args=dict(subject.args),
            env=tuple(sorted(subject.env)),
            path=tuple(folder.name for folder in folders if not (made and folder.is_relative_to(made.folder))),
            source=f"{made.name} by {made.recipe[:12]}" if made else "",
        )

    def same(self, other: Build) -> bool:
        """Whether this certainly is that build."""
        return not self.opaque and bool(self.versions) and self == other

    @property
    def words(self) -> tuple[str, ...]:
        """What names it, for people."""
        return (
            *(f"{name} {version}" for name, version in sorted(self.versions.items())),
            *([f"built from {self.source}"] if self.source else []),
            *(f"args.{name}={value}" for name, value in sorted(self.args.items())),
            *(f"env.{name}" for name in self.env),
            *(f"path={name}" for name in self.path),
        )

    @property
    def title(self) -> str:
        """The same in short: the engine's version, and what it was built from."""
        version = f"vllm {self.versions['vllm']}" if "vllm" in self.versions else ""
        return ", ".join(filter(None, (version, self.source))) or ", ".join(self.words)

    @property
    def opaque(self) -> bool:
        """Whether it has folders or variables of its own, which may hold anything."""
        return bool(self.env or self.path)


LARGEST = 1e30
"""Of a figure or ratio in base units; beyond it, or below its inverse, ratios overflow."""


def _figure(value: float) -> float:
    if value and not 1 / LARGEST <= abs(value) <= LARGEST:
        raise ValueError(f"{value:g} is beyond any figure of a trial")
    return value


Figures = tuple[Annotated[float, AfterValidator(_figure)], ...]
Values = dict[str, Annotated[Figures, MinLen(1)]]


class Anchored(Frozen):
    """What was measured beside a visit, pair by pair.

    Args:
        build: The anchor.
        values: Its restarts as in the visit's own: entry i of both is of pair i.
        in_states: By metric, the visit's own by the anchor's within the states of the GPU that both trials of a pair
            had, of the pairs that had one. Empty where no states were seen; metrics that do not follow them have none.
    """

    build: Build
    values: Values
    in_states: Annotated[dict[str, Figures], Field(exclude_if=operator.not_)] = {}


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
        anchor: What was measured beside it; ``None`` where it was measured alone, or beside a build to be judged.
    """

    t0_utc: Annotated[str, AfterValidator(_instant)]
    values: Values
    gpu: GpuOutcome | None = None
    outputs: str = ""
    card: str = ""
    anchor: Anchored | None = None

    def near(self, other: BaselineVisit) -> bool:
        """Whether the machine's state may have been that of the other one."""
        return abs(datetime.fromisoformat(self.t0_utc) - datetime.fromisoformat(other.t0_utc)) <= ONE_STATE

    def is_beside(self, anchor: Build) -> bool:
        """Whether it was measured beside that build."""
        return self.anchor is not None and self.anchor.build.same(anchor)

    def tells_of(self, anchor: Build) -> bool:
        """Whether it has a ratio to that build of whatever was measured beside it."""
        return self.anchor is not None and all(self.ratios(name, anchor) for name in self.anchor.values)

    def ratios(self, metric: str, anchor: Build) -> tuple[float, ...]:
        """Its restarts by those of the anchor beside them; none where it was not measured beside that one.

        Where states of the GPU were seen, those within the states that both trials of a pair had. A value that has no
        ratio comes back as it is, zero or negative.
        """
        if self.anchor is None or not self.is_beside(anchor):
            return ()
        if metric in self.anchor.in_states:
            return self.anchor.in_states[metric]
        return tuple(starmap(ratio, zip(self.values.get(metric, ()), self.anchor.values.get(metric, ()), strict=False)))

    def is_the(self, other: BaselineVisit) -> bool:
        """Whether both are the same visit: begun in the same second, and alike in every metric that both carry."""
        shared = self.values.keys() & other.values.keys()
        alike = all(self.values[name] == other.values[name] for name in shared)
        return self.t0_utc == other.t0_utc and bool(shared) and alike


def card_of(visits: Iterable[Visit], salt: str) -> str:
    """The GPUs of visits, as a digest; empty without a GPU or without salt.

    The salt is in the baseline: who knows a device's id can look for it, and nobody can find an id of 122 random bits.
    """
    devices = sorted({uuid for visit in visits for uuid in visit.uuids})
    return sha256_hex(" ".join([salt, *devices]))[:12] if devices and salt else ""


def visits_of(record: Record, side: Side, salt: str, *, anchored: bool = False) -> Iterator[BaselineVisit]:
    """Every visit of a record in which one side has a value, in order of time.

    Cards are hashed with ``salt``. Where the base is an anchor, the head is kept pair by pair beside it.
    """
    gated = {gate.gate.measured.name: gate.gate.measured for gate in record.cell.gates}
    metrics = {**METRICS, **gated}.values()
    anchor = Build.of(record, "base") if anchored else None
    states = PairsInStates.of(record) if anchored else None
    for number, visit in enumerate(record.visits):
        pairs = {kind: [p for p in record.pairs(kind) if p[0].visit == number] for kind in KINDS} if anchored else {}
        trials = {kind: [t for t in record.judged_trials(side, kind) if t.visit == number] for kind in KINDS}
        if anchored:
            trials = {kind: [head for _, head in pairs[kind]] for kind in KINDS}
        values = _by_metric(metrics, trials)
        if not values:
            continue
        beside = _by_metric(metrics, {kind: [base for base, _ in pairs[kind]] for kind in KINDS}) if anchored else {}
        both = [metric for metric in metrics if states and metric.name in values.keys() & beside.keys()]
        in_states = {
            metric.name: tuple(map(_digits, ratios))
            for metric in both
            if states and (ratios := states.ratios(metric, number)) is not None
        }
        seen = trials["timed"] or trials["traced"]
        yield BaselineVisit(
            t0_utc=visit.t0_utc,
            values=values,
            gpu=gpu_outcome(seen),
            outputs=outputs(seen),
            card=card_of([visit], salt),
            anchor=Anchored(build=anchor, values=beside, in_states=in_states) if anchor and beside else None,
        )


def _by_metric(metrics: Iterable[Metric], trials: Mapping[Kind, Sequence[Trial]]) -> Values:
    values = {metric.name: kept_values(metric, trials[metric.kind]) for metric in metrics}
    return dict(sorted((name, restarts) for name, restarts in values.items() if restarts))


def kept_values(metric: Metric, trials: Sequence[Trial]) -> tuple[float, ...]:
    """The values of restarts as a baseline keeps them; none where a restart lacks the metric."""
    values = [metric.summarise(trial) for trial in trials]
    restarts = tuple(_digits(value) for value in values if value is not None)
    return restarts if len(restarts) == len(trials) else ()


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def outputs(trials: Sequence[Trial]) -> str:
    """A digest of the tokens that trials of one kind generated; empty where they do not agree."""
    rows = {tuple(iteration.tokens_digest for iteration in trial.iterations) for trial in trials}
    return sha256_hex(canonical_json(list(rows.pop())))[:16] if len(rows) == 1 else ""
