"""The record: everything measured on one cell, and the manifest of the run that measured it.

The only formats so far are ``perfgate-record/1`` and ``perfgate-run/1`` (from 0.1.0 on).

A record is one canonical JSON file (sorted keys, no floats but those of the cell and of counters) that carries a digest
of itself. Statistics are never stored in it: any verdict is recomputed from the iterations it holds. Files are replaced
atomically, so that a reader or a crash never sees half a record.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from perfgate.errors import RecordError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.fingerprint import Gpu, Machine
from perfgate.machine.json_text import RECORD
from perfgate.machine.versioned_json import (
    parse_content,
    read_bytes,
    read_model,
    validated,
    write_model,
    write_readable,
)
from perfgate.metrics.catalogue import METRICS, by_role
from perfgate.metrics.kinds import joined
from perfgate.metrics.sides import HeadName, Side
from perfgate.metrics.trial import KINDS, TAKE_AGAIN, Artifact, Failure, Kind, Trial, key_of
from perfgate.models import Frozen, absent
from perfgate.record.compared_builds import BuildDigest, ComparedBuilds, HeadsField
from perfgate.record.iteration_choice import IterationChoice
from perfgate.record.run_names import RUN
from perfgate.scenario.part import Part
from perfgate.scenario.plan import OLD_ORDERS, Cell, OrdersField, Plan
from perfgate.scenario.subject import Subject, runs_already
from perfgate.stats.sequential import Schedule

if TYPE_CHECKING:
    import pandas as pd

RECORD_FORMAT: Final = "perfgate-record/1"
TRIALS_OF_A_PART: Final = 1_000_000
"""More than a part of a plan can have."""


class Visit(Frozen):
    """One uninterrupted occupation of one machine.

    Args:
        machine: The machine as measured at the visit's start.
        t0_utc: Start, ISO 8601 in UTC.
        environment: Names of the variables that reached the engines; values may be secrets and are not kept.
        processes: What ended each trial's processes with it: a cgroup, or the search below its supervisor, which is
            their subreaper. Not written where empty: an older record keeps its digest, by which baselines name it.
        stations: The GPUs of each station, where several measured side by side; ``machine`` has those of the first.
        builds: What the files of each build were; not written in a record that is older than the field.
    """

    machine: Machine
    t0_utc: str
    environment: tuple[str, ...] = ()
    processes: Literal["", "cgroup", "subreaper"] = Field(default="", exclude_if=operator.not_)
    stations: tuple[tuple[Gpu, ...], ...] = Field(default=(), exclude_if=operator.not_)
    builds: dict[str, BuildDigest] = Field(default={}, exclude_if=operator.not_)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs that trials may have run on."""
        return tuple(gpu.uuid for gpus in self.stations or (self.machine.gpus,) for gpu in gpus)


_Looks = Annotated[tuple[int, ...], Field(default=(), exclude_if=operator.not_)]


@joined(("further_counted_looks", lambda kind: {key_of(kind.name, "further_{}looks"): _Looks}))
class Record(ComparedBuilds):
    """Everything measured on one cell.

    Args:
        cell: The cell as resolved, gates included.
        subjects: By side; one side alone makes a one-sided record. Several heads are not among them.
        heads: Several heads by name, each of which is compared with the base; not written where there is one.
        seed: Seed of the order of trials.
        orders: How it is drawn.
        visits: In order of time.
        trials: In order of time, failed and warm-up ones included.
        further_looks: Numbers of pairs at which looks were added after the cell's own, in order.
        further_traced_looks: The same for traced pairs.
        further_counted_looks: The same for counted pairs.
        stopped: Why measuring ended before a decision, where it did.
        stops: The same for single ones of several heads, by name; not written where there is none.
        chosen: How many iterations its judged trials have, where that was chosen; not written where it was not.
    """

    format: Literal["perfgate-record/1"] = RECORD_FORMAT
    cell: Cell
    subjects: dict[Side, Subject]
    heads: HeadsField = {}
    seed: int
    orders: OrdersField = OLD_ORDERS
    visits: tuple[Visit, ...] = ()
    trials: tuple[Trial, ...] = ()
    further_looks: tuple[int, ...] = ()
    further_traced_looks: tuple[int, ...] = ()
    further_counted_looks: tuple[int, ...] = ()
    stopped: Failure | None = None
    stops: Annotated[dict[HeadName, Failure], Field(exclude_if=operator.not_)] = {}
    chosen: IterationChoice | None = Field(default=None, exclude_if=operator.not_)

    @model_validator(mode="after")
    def _chosen_within_bounds(self) -> Self:
        bounds = self.cell.measure.choose
        if self.chosen and not (bounds and bounds.least <= self.chosen.iterations <= bounds.most):
            raise ValueError("chosen: its iterations are outside the bounds of the cell")
        return self

    @model_validator(mode="after")
    def _looks_can_be_added(self) -> Self:
        for kind in KINDS:
            self.schedule(kind)
        return self

    def schedule(self, kind: Kind = "timed") -> Schedule:
        """The cell's looks and those added since, which share what either error rate has left.

        However many there are, the weights sum to at most 1, so the error rates are those declared. Timed and traced
        pairs are sequences of their own, each with its own looks.
        """
        return self.cell.schedule(kind).further(self.looks_added(kind))

    def looks_added(self, kind: Kind) -> tuple[int, ...]:
        """Numbers of pairs of a kind at which looks were added."""
        added: tuple[int, ...] = getattr(self, key_of(kind, "further_{}looks"))
        return added

    def with_look(self, kind: Kind, pairs: int) -> Self:
        """The record with a look more at pairs of a kind."""
        return self.model_copy(update={key_of(kind, "further_{}looks"): (*self.looks_added(kind), pairs)})

    def of(self, head: str = "") -> Self:
        """The comparison of one of several heads with the base, as the record of two sides that it is.

        The base's trials are those that were taken beside this head. Where there are not several it is the record.
        """
        if not self.several:
            return self
        subjects = {**self.subjects, "head": self.heads[head]}
        trials = tuple(trial for trial in self.trials if head in trial.heads)
        stopped = self.stopped or self.stops.get(head)
        return self.model_copy(update={"subjects": subjects, "trials": trials, "stopped": stopped})

    def comparisons(self) -> dict[str, Self]:
        """The comparison of each head by its name; where there are not several the record, without a name."""
        return {head: self.of(head) for head in self.compared}

    def measured(self, kind: Kind = "timed") -> int:
        """How many valid pairs there are; where one side alone is measured, how many valid trials."""
        return len(self.pairs(kind)) if self.alone is None else len(self.judged_trials(self.alone, kind))

    def iterations_of(self, trial: Trial) -> tuple[int, ...]:
        """How many iterations a timed trial has: as were chosen, if any were; a warm-up trial may come before that."""
        declared = self.cell.measure.iterations
        if self.chosen is None:
            return (declared,)
        return (self.chosen.iterations,) if trial.pair is not None else (self.chosen.iterations, declared)

    def pairs(self, kind: Kind = "timed") -> list[tuple[Trial, Trial]]:
        """Valid pairs as (base, head), in the order they were measured.

        Raises:
            TypeError: It is of several heads.
        """
        self._require_one_head()
        sides: dict[int, dict[str, Trial]] = {}
        for trial in self.trials:
            if trial.kind == kind and trial.pair is not None and trial.failure is None:
                sides.setdefault(trial.pair, {})[trial.subject] = trial
        return [(pair["base"], pair["head"]) for _, pair in sorted(sides.items()) if len(pair) == 2]  # noqa: PLR2004

    def warmed_up(self) -> list[tuple[Trial, Trial]]:
        """The valid warm-up trials of each visit and GPU as (base, head); where one is lacking both are left out."""
        sides: dict[tuple[int, tuple[str, ...]], dict[str, Trial]] = {}
        for trial in self.trials:
            if trial.kind == "timed" and trial.pair is None and trial.failure is None:
                sides.setdefault((trial.visit, trial.gpus), {})[trial.subject] = trial
        return [(trials["base"], trials["head"]) for trials in sides.values() if len(trials) == 2]  # noqa: PLR2004

    def dropped_pairs(self, kind: Kind = "timed") -> dict[int, Trial]:
        """The trial that failed first in each dropped pair by number of the pair, in the order they failed.

        Raises:
            TypeError: It is of several heads.
        """
        self._require_one_head()
        failures: dict[int, Trial] = {}
        for trial in self.trials:
            if trial.kind == kind and trial.pair is not None and trial.failure is not None:
                failures.setdefault(trial.pair, trial)
        return failures

    def _require_one_head(self) -> None:
        if self.several:
            raise TypeError(f"{self.cell.name}: the pairs of one of several heads are asked of its comparison")

    def judged_trials(self, side: Side, kind: Kind = "timed") -> list[Trial]:
        """Valid trials of one side, without warm-up trials."""
        trials = (t for t in self.trials if t.subject == side and t.kind == kind)
        return [t for t in trials if t.pair is not None and t.failure is None]

    def frame(self) -> pd.DataFrame:
        """One row a trial: index, kind, pair, position, subject, visit, failure code; a column a metric in base units.

        Metrics by role have a column for each role that occurs, ``kernel_time_per_step[gemm]``. A profiler slows its
        trial down: compare rows of one kind.
        """
        import pandas as pd  # noqa: PLC0415 (docs/design.md: pandas costs 0.2 s, and only notebooks need it)

        metrics = METRICS | {metric.name: metric for kind in KINDS for metric in by_role(kind, self.trials)}
        columns = ["trial", "kind", "pair", "position", "subject", "visit", "failure", *metrics]
        rows = [
            (t.index, t.kind, t.pair, t.position, t.label, t.visit, t.failure.code if t.failure else None,
             *(metric.summarise(t) for metric in metrics.values()))
            for t in self.trials
        ]  # fmt: skip
        whole = dict.fromkeys(("trial", "position", "visit"), "int64")
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype({"pair": "Int64", **whole, **dict.fromkeys(metrics, "float64")})

    def iteration_frame(self) -> pd.DataFrame:
        """One row an iteration: trial, pair, subject, iteration, medians in integer nanoseconds, digest of tokens.

        Pair and medians are ``Int64``, pandas' integer that can be missing.
        """
        import pandas as pd  # noqa: PLC0415 (as above)

        whole = dict.fromkeys(("trial", "iteration"), "int64")
        may_miss = dict.fromkeys(("pair", "ttft_ns", "itl_ns", "e2e_ns"), "Int64")
        columns = ["trial", "pair", "subject", "iteration", "ttft_ns", "itl_ns", "e2e_ns", "tokens_digest"]
        rows = [
            (t.index, t.pair, t.label, n, _middle(i.ttft_ns), _middle(i.itl_ns), _middle(i.e2e_ns), i.tokens_digest)
            for t in self.trials
            for n, i in enumerate(t.iterations)
        ]
        # As objects: a missing number must not turn the others into floats on the way.
        frame = pd.DataFrame(rows, columns=columns, dtype=object)
        return frame.astype({**whole, **may_miss})


class Run(ComparedBuilds):
    """What one command set out to measure; ``run.json`` of a run folder.

    Args:
        name: Name of the run folder.
        plan: Cells, seed and error rates.
        subjects: By side; several heads are not among them.
        heads: Several heads by name; not written where there is one.
        quick: True for ``--quick``, which never has a verdict, and wherever a server that runs already is measured.
        kernels_only: True where its cells have no gates: only what the decode steps run is judged.
        exact_only: True where only what repeats exactly is taken and judged; not written where it is false.
        host_profile: True where sampled pairs are taken as well; not written where it is false.
        profiles: For one side that is held against stored profiles: the copies kept in the run folder, by cell_id;
            ``None``, and not written, for any other run.
        against: For a head that is judged against stored baselines, alone or beside an anchor as its base: the copies
            kept in the run folder that it may be held against, by cell_id; ``None`` for any other run.
        pairs: The manifest of the pairs that were begun for a run against baselines; not written where there are none.
        part: Where several machines measure parts of the plan, which one this is; not written where one measures all.
        perfgate: Version that measured.
    """

    format: Literal["perfgate-run/1"] = "perfgate-run/1"
    name: str
    plan: Plan
    subjects: dict[Side, Subject]
    heads: HeadsField = {}
    quick: bool = False
    kernels_only: bool = False
    exact_only: bool = Field(default=False, exclude_if=operator.not_)
    host_profile: bool = Field(default=False, exclude_if=operator.not_)
    profiles: dict[str, tuple[Artifact, ...]] | None = Field(default=None, exclude_if=absent)
    against: dict[str, tuple[Artifact, ...]] | None = None
    pairs: Artifact | None = Field(default=None, exclude_if=absent)
    part: Part | None = Field(default=None, exclude_if=absent)
    perfgate: str

    @model_validator(mode="after")
    def _one_trial_of_a_running_server(self) -> Self:
        if self.of_running_servers and not self.quick:
            raise ValueError("a server that runs already is one replicate: expected quick")
        return self

    @property
    def of_running_servers(self) -> bool:
        """Whether a side is a server that ran already."""
        return runs_already(self.built)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that it answers for: those of its part of the plan."""
        return self.plan.cells if self.part is None else self.part.cells(self.plan)

    @property
    def first_trial(self) -> int:
        """The number of its first trial: no two parts of a plan have one in common."""
        return self.part.place * TRIALS_OF_A_PART if self.part else 0

    @property
    def fixed(self) -> bool:
        """Whether the number of trials is set beforehand: of one side alone, and of a head beside an anchor."""
        return self.alone is not None or self.against is not None


def _middle(values: Sequence[int]) -> int | None:
    """The lower median, so that nanoseconds stay integers."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def record_digest(record: Record) -> str:
    """The digest that the record's file carries and that a verdict names."""
    return sha256_hex(canonical_json(record.model_dump(mode="json")))


def write_record(file: Path, record: Record) -> None:
    """Write a record with its digest, canonically and atomically; raises as :func:`write_readable`."""
    content = record.model_dump(mode="json")
    content["digest"] = sha256_hex(canonical_json(content))
    write_readable(file, json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False), RECORD)


def read_record(file: Path) -> Record:
    """Read a record of any format in the history.

    Raises:
        RecordError: The file is missing, no record, of a newer format, or its digest does not fit its content.
    """
    content = parse_content(read_bytes(file, RECORD), RECORD_FORMAT, str(file), RECORD)
    digest = content.pop("digest", None)
    try:
        fits = digest == sha256_hex(canonical_json(content))
    except ValueError:  # half of a surrogate pair, which has no bytes
        fits = False
    if not fits:
        text = "the digest does not fit the content: the record was truncated or changed"
        raise RecordError(text, where=str(file), remedy=TAKE_AGAIN)
    return validated(Record, content, str(file))


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json``; raises as :func:`write_model`."""
    write_model(folder / RUN, run)


def read_run(folder: Path) -> Run:
    """Read the manifest of a run folder.

    Raises:
        RecordError: The folder not a run folder, or its manifest cannot be read.
    """
    if folder.is_dir() and not (folder / RUN).exists():
        raise RecordError(f"not a run folder: it has no {RUN}", where=str(folder))
    return read_model(Run, folder / RUN)


def record_file(folder: Path, cell: Cell) -> Path:
    """Where a run folder keeps the record of ``cell``."""
    return folder / "records" / f"{cell.slug}.json"


def read_records(folder: Path, run: Run) -> Iterator[Record]:
    """The records of a run's cells that its folder holds, in the plan's order.

    Raises:
        RecordError: A record cannot be read, or belongs to another cell than its name says.
    """
    for cell in run.cells:
        file = record_file(folder, cell)
        if file.exists():
            record = read_record(file)
            if record.cell.cell_id != cell.cell_id:
                raise RecordError("holds another cell than the run's manifest names", where=str(file))
            declared = (cell, run.built, run.plan.seed, run.plan.orders, bool(run.heads))
            if (record.cell, record.built, record.seed, record.orders, record.several) != declared:
                what = "its cell, subjects, seed or orders are not those of the run's manifest"
                raise RecordError(f"{what}: one of the two was changed", where=str(file), remedy=TAKE_AGAIN)
            yield record
