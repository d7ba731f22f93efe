"""How far a run has come, and how long trials take.

Measured durations for what is decided by them, and what was known before for what is only shown.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perfgate.errors import InterruptedRunError
from perfgate.metrics.trial import SETTLED, Kind, Trial
from perfgate.record.cost import least_budget
from perfgate.units import plural

WARM_UP = "warm-up"
"""Fills caches and takes longer, so it counts only until there is a trial that is judged."""

TRACED = 2.0
"""A traced trial takes up to so many times a timed one with its imports: 1.0 to 2.0 times on H100s and H200s
(docs/measurements.md). It waits for no state of the GPU, so what a timed one waited for that is left out."""


@dataclass(frozen=True)
class Step:
    """How far a run has come, for whoever shows progress.

    Args:
        cell: The cell's name.
        trial: Number of the trial in the run.
        side: The side measured, or the name of one of several heads.
        pair: Number of the pair; ``None`` for a warm-up trial.
        done: Pairs finished.
        target: Pairs at the look being measured for.
        phase: What is going on, in a few words.
        seconds_left: Estimate until that look; ``None`` while nothing is known of how long a trial takes.
        kind: The kind of trial.
        finished: The trial, once it has ended.
        station: Where it is taken, if there are several.
        state: ``slow`` or ``fast``, as the GPUs there were when its last trial ended; empty where nobody can tell.
    """

    cell: str
    trial: int
    side: str
    pair: int | None
    done: int
    target: int
    phase: str
    seconds_left: float | None
    kind: Kind = "timed"
    finished: Trial | None = None
    station: str = ""
    state: str = ""


Progress = Callable[[Step | str], None]
"""Told how far the run has come, and now and then a sentence of its own."""


class Pace:
    """The durations of a visit's trials, by cell; those of earlier visits count too."""

    def __init__(self) -> None:
        self._taken_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._on_filled_caches_s: dict[str, list[float]] = defaultdict(list)
        self._known_s: dict[tuple[str, Kind], float] = {}

    def begin(self, cell_id: str, trials: Iterable[Trial], known_s: Mapping[Kind, float]) -> None:
        """Take up a cell with the trials that it has.

        Args:
            cell_id: The cell.
            trials: Of earlier visits.
            known_s: Seconds that a trial of a kind is known to take from elsewhere.
        """
        self._known_s |= {(cell_id, kind): seconds for kind, seconds in known_s.items()}
        for trial in trials:
            self._count(cell_id, trial)

    def note(self, cell_id: str, trial: Trial) -> None:
        """Count a trial that has ended in this visit, but for one that was refused before it began."""
        self._count(cell_id, trial)
        if trial.kind == "timed" and trial.pair is not None and trial.duration_ns:
            beside_ns = trial.startup.import_ns if trial.startup and trial.startup.parked_ns else 0
            took_ns = trial.duration_ns + beside_ns - trial.figures.get(SETTLED, 0)
            self._on_filled_caches_s[cell_id].append(took_ns / 1e9)

    def _count(self, cell_id: str, trial: Trial) -> None:
        if trial.duration_ns:
            self._taken_s[cell_id, WARM_UP if trial.pair is None else trial.kind].append(trial.duration_ns / 1e9)

    def measured_s(self, cell_id: str, kind: Kind) -> float:
        """The median trial of a kind, of this cell or else of any, else of warm-up; 0 where nothing was measured.

        A cell's first traced trial counts as one of warm-up of its own, or as two timed ones of this visit, with which
        caches are filled, where that is less.
        """
        timed_s = self._on_filled_caches_s.get(cell_id)
        if kind != "traced" or not timed_s or (cell_id, kind) in self._taken_s:
            return self._on_empty_caches_s(cell_id, kind)
        warm_up_s = self._taken_s.get((cell_id, WARM_UP))
        at_most_s = TRACED * statistics.median(timed_s)
        return min(at_most_s, statistics.median(warm_up_s)) if warm_up_s else at_most_s

    def _on_empty_caches_s(self, cell_id: str, kind: Kind) -> float:
        """The same of a visit that has taken no timed trial of the cell."""
        for name in (kind, WARM_UP):
            times = self._taken_s.get((cell_id, name))
            seconds = times or [s for (_, taken_as), taken in self._taken_s.items() if taken_as == name for s in taken]
            if seconds:
                return statistics.median(seconds)
        return 0.0

    def afford(self, cell_id: str, trials: int, deadline_s: float, kind: Kind = "timed", *, warm: bool = False) -> None:
        """Stop before that many more trials if, by the median of those finished, they would end after the deadline.

        Args:
            cell_id: The cell.
            trials: How many.
            deadline_s: Monotonic time.
            kind: Their kind.
            warm: Whether warm-up is behind them, which the next visit has to do again.

        Raises:
            InterruptedRunError: ``out-of-budget``, with a budget by which the next visit gets on, whatever its caches.
        """
        trial_s = self.measured_s(cell_id, kind)
        if time.monotonic() + trial_s * trials <= deadline_s:
            return
        if not trial_s:
            raise InterruptedRunError("nothing is left of the budget", code="out-of-budget")
        takes = f"the next {plural(trials, 'trial')} take about {math.ceil(trial_s * trials)} s"
        next_s = max(trial_s, self._on_empty_caches_s(cell_id, kind))
        least = least_budget(next_s * trials * (1 + (warm and kind == "timed")))
        text = f"{takes}, more than is left of the budget; the next visit gets on with --budget {least}"
        raise InterruptedRunError(text, code="out-of-budget")

    def expected_s(self, cell_id: str, kind: Kind) -> float | None:
        """What the next trial will take: by this cell's own, by what is known of it, by any other; else ``None``."""
        if times := self._taken_s.get((cell_id, kind)):
            return statistics.median(times)
        return self._known_s.get((cell_id, kind)) or self.measured_s(cell_id, kind) or None
