"""Recorded restarts: what the trials of a run measured, pair by pair, whatever file keeps it.

Three kinds of place hold them: run folders; CSVs with a line a trial and metric (:mod:`perfgate.record.csv_table`);
and CSVs with a line an iteration, ``run,pair,subject,iteration,itl_ns`` and perhaps ``ttft_ns`` and ``card``, in which
a warm-up trial has an empty ``pair``.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfgate import stats
from perfgate.errors import RecordError
from perfgate.machine.fingerprint import machine_class
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import Trial
from perfgate.record.csv_table import Values, read_table
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import RUN
from perfgate.record.run_record import read_records
from perfgate.scenario.subject_words import same_build
from perfgate.units import NS_PER_S

STEP = "itl_median"  # the metric that is kept by iteration
# Metrics that are the median of a column with a value an iteration
BY_ITERATION = {STEP: "itl_ns", "ttft_median": "ttft_ns"}
NEEDED = ("run", "pair", "subject", "iteration", "itl_ns")
LONGEST_NS = 24 * 3600 * 10**9
# In the name of a recording in a CSV, which does not say otherwise what its sides were
SAME_BUILD = re.compile(r"\bsame[ -]build\b")
# Trials of a recording with its iterations and one without agree within this if they are one run: the median of
# iterations and that of all steps differ a little
SAME_TRIAL = 5e-4
# Where both or neither have them nothing differs but digits: a few quiet trials of two runs are soon alike
SAME_VALUE = 1e-6


@dataclass(frozen=True)
class Recording:
    """The pairs of one run."""

    name: str
    kind: str  # what was measured on which class of machine: pairs of one kind may be put in one sequence
    same_build: bool  # whether both sides were one build
    # By name, values of base and head in base units, entry i of both of pair i, in the order of the pairs
    metrics: Mapping[str, Values]
    visits: tuple[int, ...]  # the visit of each pair, from 0
    # Decode step of each iteration in seconds, shape (pairs, iterations), of base and head; `None` where only one value
    # a trial was kept
    iterations: tuple[stats.Floats, stats.Floats] | None = field(default=None, compare=False)

    @property
    def pairs(self) -> int:
        """How many there are."""
        return len(self.visits)

    def log_ratios(self, metric: str) -> stats.Floats:
        """Of head to base in each pair, positive is worse, shape (pairs,)."""
        values = self.metrics[metric]
        return stats.log_ratios(values.base, values.head, METRICS[metric].sign)


def read_recordings(source: Path) -> tuple[Recording, ...]:
    """The recordings of a CSV, of a run folder, or of all CSVs in a folder and all run folders below it.

    A run that is there twice, by iteration and by trial, counts once.

    Raises:
        RecordError: With place and line: there is none, or one cannot be read.
    """
    if source.is_dir():
        files = [*sorted(source.glob("*.csv")), *sorted(file.parent for file in source.rglob(RUN))]
    else:
        files = [source]
    recordings = [recording for file in files for recording in (_of_run(file) if file.is_dir() else _of_csv(file))]
    if not recordings:
        text = "holds no pair of trials" if files else "holds neither a run folder nor a CSV"
        raise RecordError(text, where=str(source), remedy="Name a run folder, a folder of them, or a CSV of trials.")
    return tuple(distinct(recordings))


def distinct(recordings: Iterable[Recording]) -> Iterator[Recording]:
    """Without those that are there twice; of these the one with its iterations is kept."""
    kept: list[Recording] = []
    for recording in sorted(recordings, key=lambda recording: recording.iterations is None):
        if not any(same_run(recording, earlier) for earlier in kept):
            kept.append(recording)
            yield recording


def same_run(first: Recording, second: Recording) -> bool:
    """Whether the decode steps of two recordings agree in every trial."""
    if first.pairs != second.pairs or STEP not in first.metrics or STEP not in second.metrics:
        return False
    if first.iterations is not None and second.iterations is not None:
        steps, others = np.array(first.iterations), np.array(second.iterations)
        return steps.shape == others.shape and np.allclose(steps, others, rtol=SAME_VALUE, atol=0)
    a, b = ([recording.metrics[STEP].base, recording.metrics[STEP].head] for recording in (first, second))
    alike = (first.iterations is None) == (second.iterations is None)
    return np.allclose(a, b, rtol=SAME_VALUE if alike else SAME_TRIAL, atol=0)


# --- run folders


def _of_run(folder: Path) -> Iterator[Recording]:
    timed = [metric for metric in METRICS.values() if metric.kind == "timed" and not metric.signed]
    for record in read_records(folder, read_manifest(folder)):
        record.refuse_several(str(folder))
        pairs = [pair for pair in record.pairs() if pair[0].visit == pair[1].visit]
        if not pairs:
            continue
        values = {metric.name: _values_of(metric, pairs) for metric in timed}
        machine = machine_class(record.visits[pairs[0][0].visit].machine, record.cell.clocks.mode)
        yield Recording(
            name=f"{folder.name} {record.cell.name}", kind=f"{record.cell.cell_id[:12]} on {machine}",
            same_build=same_build(record.subjects.get("base"), record.subjects.get("head")),
            metrics={name: measured for name, measured in values.items() if measured is not None},
            visits=tuple(base.visit for base, _ in pairs), iterations=_iterations_of(pairs),
        )  # fmt: skip


def _values_of(metric: Metric, pairs: Sequence[tuple[Trial, Trial]]) -> Values | None:
    base, head = ([metric.summarise(pair[n]) for pair in pairs] for n in (0, 1))
    sides = [[value for value in side if value is not None and value > 0] for side in (base, head)]
    if min(map(len, sides)) < len(pairs):
        return None
    step = max(metric.resolution(trial) for pair in pairs for trial in pair)
    return Values(tuple(sides[0]), tuple(sides[1]), step)


def _iterations_of(pairs: Sequence[tuple[Trial, Trial]]) -> tuple[stats.Floats, stats.Floats] | None:
    rows = [[[iteration.itl_ns for iteration in trial.iterations] for trial in pair] for pair in pairs]
    lengths = {len(trial) for row in rows for trial in row}
    if len(lengths) > 1 or not all(steps for row in rows for trial in row for steps in trial):
        return None
    base, head = (np.array([[np.median(s) for s in row[n]] for row in rows]) / NS_PER_S for n in (0, 1))
    return base, head


# --- CSVs


def _of_csv(file: Path) -> list[Recording]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            if "iteration" in reader.fieldnames:
                return _by_iteration(reader, file)
    except FileNotFoundError as error:
        raise RecordError("does not exist", where=str(file)) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"cannot be read as CSV: {error}", where=str(file)) from error
    table = read_table(file)
    if not table.paired:
        raise RecordError("has no column 'pair': trials that were not taken in pairs cannot be replayed",
                          where=f"{file}:1")  # fmt: skip
    metrics = {name: values for name, values in table.metrics.items() if name in METRICS}
    pairs = {len(values.base) for values in metrics.values()}
    if len(pairs) != 1:
        text = "its metrics have different numbers of pairs" if pairs else "holds no metric of a timed trial"
        raise RecordError(text, where=str(file))
    return [Recording(file.stem, file.stem, bool(SAME_BUILD.search(file.stem)), metrics, (0,) * pairs.pop())]


@dataclass
class _Run:
    """A run as its lines are read: values of each pair by column and subject, and the visit each began in."""

    kind: str
    values: dict[int, dict[tuple[str, str], list[int]]] = field(default_factory=dict)
    visits: dict[int, int] = field(default_factory=dict)
    visit: int = 0
    conditioned: bool = False

    def take(self, pair: str, subject: str, figures: Mapping[str, int]) -> None:
        """A line. A visit begins with warm-up trials, so one after a pair begins another visit."""
        if not pair:
            self.visit += not self.conditioned and bool(self.values)
            self.conditioned = True
            return
        self.conditioned = False
        if not float(pair).is_integer():  # two pairs would be taken for one
            raise ValueError(f"pair is {pair!r}")
        number = int(float(pair))  # some tools write a column with gaps as 1.0
        self.visits.setdefault(number, self.visit)
        for column, figure in figures.items():
            self.values.setdefault(number, {}).setdefault((column, subject), []).append(figure)


def _by_iteration(reader: csv.DictReader[str], file: Path) -> list[Recording]:
    header = reader.fieldnames or ()
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise RecordError(f"has no column {missing[0]!r}, expected {','.join(NEEDED)}", where=f"{file}:1")
    columns = [column for column in BY_ITERATION.values() if column in header]
    runs: dict[str, _Run] = {}
    for row in reader:
        where = f"{file}:{reader.line_num}"
        subject, cards = row["subject"], (row.get("card") or "").count("+") + 1
        if subject not in SIDES:
            raise RecordError(f"subject is {subject!r}, expected base or head", where=where)
        try:
            figures = {column: int(row[column]) for column in columns}
            runs.setdefault(row["run"] or "", _Run(f"{file.stem} x{cards}")).take(row["pair"] or "", subject, figures)
        except (TypeError, ValueError, OverflowError) as error:
            raise RecordError(f"pair and times must be whole numbers: {error}", where=where) from error
        if not all(0 < figure < LONGEST_NS for figure in figures.values()):
            raise RecordError("a time must be above 0 and below a day", where=where)
    return [recording for name, run in runs.items() if (recording := _recording(name, run, columns)) is not None]


def _recording(name: str, run: _Run, columns: Sequence[str]) -> Recording | None:
    """The whole pairs of a run: both sides have as many iterations as most trials have."""
    lengths = [len(figures) for pair in run.values.values() for figures in pair.values()]
    usual = max(set(lengths), key=lengths.count, default=0)
    cells = [*itertools.product(columns, SIDES)]
    complete = [n for n in sorted(run.values) if all(len(run.values[n].get(cell, ())) == usual for cell in cells)]
    if not complete:
        return None
    sides = {cell: np.array([run.values[n][cell] for n in complete]) / NS_PER_S for cell in cells}
    metrics = {}
    for metric, column in BY_ITERATION.items():
        if column in columns:
            base, head = (tuple(np.median(sides[column, side], axis=1).tolist()) for side in SIDES)
            metrics[metric] = Values(base, head, 1 / NS_PER_S / min(*base, *head))
    return Recording(
        name, run.kind, bool(SAME_BUILD.search(name)), metrics, tuple(run.visits[n] for n in complete),
        (sides["itl_ns", "base"], sides["itl_ns", "head"]),
    )  # fmt: skip
