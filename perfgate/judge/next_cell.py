"""Which cell of a run comes next: first looks before second ones, and then where a decision costs least.

Nothing of this is stored: the order follows from the manifest, the records and earlier runs, so that a run which was
killed goes on by the same rule. Verdicts do not depend on it. What a cell's looks may spend is fixed for each cell, and
its running p values hold whenever measuring stops (docs/decisions.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate import scipy_special as special
from perfgate.judge.next_pairs import Due, due
from perfgate.judge.power import pair_spread
from perfgate.metrics.catalogue import COLD_START
from perfgate.metrics.trial import Kind
from perfgate.record.cost import Earlier, newest_records, trial_seconds
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.stats.estimate import ROUNDING, Estimate
from perfgate.stats.sequential import Schedule
from perfgate.units import plural

History = Mapping[Kind, Earlier]
"""Records of one cell by the kind of pairs that they tell of, see :func:`perfgate.record.cost.newest_records`."""


@dataclass(frozen=True)
class _Gate:
    """A gate that is not decided."""

    plan: GatePlan  # the gate
    level: float  # holm's, at which it would block
    margins: tuple[float, float]  # `ignorable` and `must_catch` as ratios minus one
    pairs: int = 0  # pairs at the last look; before the first one 0, and the builds are taken to be alike
    mean: float = 0.0  # of their log ratios, positive is worse
    pair_sd: float | None = None  # their spread; `None` where no look tells

    def chances(self, cell: Cell, history: History, schedule: Schedule) -> dict[int, tuple[float, float]] | None:
        """For each further look the chances that it passes and that it blocks; ``None`` where no spread is known."""
        gate = self.plan.gate
        known_sd, _, resolution, _ = pair_spread(cell, gate.measured, history.get(gate.measured.kind))
        sd = self.pair_sd or known_sd
        if sd is None:
            return None
        ignorable, must_catch = map(math.log1p, self.margins)
        chances = {}
        for look, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
            if look <= self.pairs:
                continue
            then = Estimate(self.mean, sd / math.sqrt(look), look - 1, resolution).carrying(gate.drawn)
            # What is seen stays part of the mean: only the pairs to come, and its own error, move it.
            moves = max(sd * math.sqrt((1 / self.pairs - 1 / look) if self.pairs else 1 / look), ROUNDING)
            passes = (must_catch - then.upper(BETA * passing)) / moves
            blocks = (then.lower(self.level * block) - ignorable) / moves
            chances[look] = (float(special.ndtr(passes)), float(special.ndtr(blocks)))
        return chances


@dataclass(frozen=True)
class _Stretch:
    """What is measured of a cell until gates are looked at next, or until it has all that it is to have."""

    cell: Cell  # the cell
    lacking: Mapping[Kind, int]  # pairs by kind, in the order they are taken
    # Those that are not decided, of the last of these kinds; `None` where nothing is looked at
    gates: Sequence[_Gate] | None
    taken: int  # pairs of that kind that there are
    schedule: Schedule  # its looks
    builds: int  # trials of a pair, or round
    cold: bool  # whether warm-up trials come first

    def decisions_a_second(self, history: History) -> float | None:
        """The chance that a further look decides over the seconds until then, of the look where that is most.

        ``None`` where nobody knows what a trial takes, or what pairs spread by.
        """
        trial_s = trial_seconds(self.cell, history)
        if not trial_s.keys() >= self.lacking.keys():
            return None
        warm_up_s = trial_s.get("timed", 0.0) if self.cold and "timed" in self.lacking else 0.0
        first_s = self.builds * (warm_up_s + sum(pairs * trial_s[kind] for kind, pairs in self.lacking.items()))
        if self.gates is None:
            return 1 / max(first_s, ROUNDING)
        chances = [gate.chances(self.cell, history, self.schedule) for gate in self.gates]
        known_chances = [gate_chances for gate_chances in chances if gate_chances is not None]
        if not known_chances or len(known_chances) < len(chances):
            return None
        *_, kind = self.lacking
        first = self.taken + self.lacking[kind]
        return max(
            _decides([gate_chances[look] for gate_chances in known_chances])
            / max(first_s + self.builds * (look - first) * trial_s[kind], ROUNDING)
            for look in self.schedule.looks
            if look >= first
        )


def _decides(chances: Sequence[tuple[float, float]]) -> float:
    """The chance that a look decides a cell: every gate passes, or one blocks."""
    passes = math.prod(passing for passing, _ in chances)
    return min(passes + 1 - math.prod(1 - block for _, block in chances), 1.0)


def soonest_first(cells: Sequence[Cell], history: Mapping[str, History], heads: int = 1) -> list[Cell]:
    """Cells of which nothing was measured in the order that a run of them takes them to their first looks.

    Args:
        cells: As they are declared.
        history: By cell_id.
        heads: In one run beside one base.
    """
    gates = heads * sum(len(cell.gates) for cell in cells)
    rates = [_fresh(cell, gates, 1 + heads).decisions_a_second(history.get(cell.cell_id, {})) for cell in cells]
    places = sorted(range(len(cells)), key=lambda place: -(rates[place] or 0.0))
    return [cells[place] for place in places]


def told(cells: Iterable[Cell]) -> str:
    """The order of first looks in words, where it is not that of the scenarios."""
    names = ", ".join(cell.name for cell in cells)
    return f"order of first looks: {names}; where earlier runs or measure.expect promise a decision soonest comes first"


class CellOrder:
    """Says which cell of a visit comes next.

    A cell is left only between two looks: no worker is parked there, and whatever no look decides is taken at once.
    Coming back needs no warm-up trials, because caches and GPUs are as warm as before. A start reads more than that,
    so a cell that gates it is not left.

    Args:
        run: Its manifest.
        records: What there is of it, by cell_id.
        runs: A folder of run folders, where earlier records tell what cells cost and spread by.
        tell: Told where the order is not that of the scenarios.
    """

    def __init__(self, run: Run, records: Mapping[str, Record], runs: Path, tell: Callable[[str], None]) -> None:
        self._run = run
        self._tell = tell
        self._last: Due | None = None
        self._begun: set[str] = set()
        self._gates = sum(len(cell.gates) for cell in run.plan.cells) * len(run.compared)
        cells = {entry.cell.cell_id: entry.cell for entry in due(run, records)}
        # A run of a fixed size has no look to reach soonest, and of one cell there is nothing to choose.
        self._chooses = len(cells) > 1 and not (run.quick or run.fixed)
        self._history = {name: newest_records(runs, cell) for name, cell in cells.items()} if self._chooses else {}

    def next(self, records: Mapping[str, Record]) -> tuple[Due, Kind | None] | None:
        """What is to be measured now, and the kind of trial that comes after it in any case; ``None`` at the end."""
        dues: dict[str, list[Due]] = {}
        for entry in due(self._run, records):
            dues.setdefault(entry.cell.cell_id, []).append(entry)
        if not dues:
            return None
        last = self._last
        if last is not None and (rest := dues.get(last.cell.cell_id)) and _stays(last, rest[0]):
            chosen = rest
        else:
            chosen = self._soonest([*dues.values()], records) if self._chooses else next(iter(dues.values()))
        now = self._last = chosen[0]
        self._begun.add(now.cell.cell_id)
        return now, None if now.decides else next((entry.kind for entry in chosen[1:]), None)

    def _soonest(self, dues: Sequence[list[Due]], records: Mapping[str, Record]) -> list[Due]:
        """What is due of the cell that comes next."""
        rated = []
        for cell_dues in dues:
            cell_id = cell_dues[0].cell.cell_id
            stretch = self._stretch(cell_dues, records.get(cell_id))
            history = {**self._history.get(cell_id, {}), **_own_history(self._run, records.get(cell_id))}
            rated.append((_looked(cell_dues[0]), -(stretch.decisions_a_second(history) or 0.0), cell_dues))
        ranked = sorted(rated, key=lambda rating: rating[:2])
        looked, _, chosen = ranked[0]
        if self._last is None:
            self._tell_first([cell_dues[0].cell for looked, _, cell_dues in ranked if not looked])
        elif looked and len(dues) > 1 and chosen[0].cell != self._last.cell:
            what = "pair" if chosen[0].kind == "timed" else f"{chosen[0].kind} pair"
            where = f"{chosen[0].cell.name}, for the look at {plural(chosen[0].target, what)}"
            self._tell(f"next {where}: of {len(dues)} open cells it is likeliest to be decided for the time it takes")
        return chosen

    def _tell_first(self, cells: list[Cell]) -> None:
        if cells != [cell for cell in self._run.cells if cell in cells]:
            self._tell(told(cells))

    def _stretch(self, dues: Sequence[Due], record: Record | None) -> _Stretch:
        now = dues[0]
        if record is None:
            return _fresh(now.cell, self._gates, 1 + len(self._run.compared))
        looks_at = next((n for n, entry in enumerate(dues) if entry.decides), None)
        ahead = dues[: None if looks_at is None else looks_at + 1]
        taken = {entry.kind: record.of(entry.heads[0]).measured(entry.kind) for entry in ahead}
        return _Stretch(
            now.cell,
            {entry.kind: entry.target - taken[entry.kind] for entry in ahead},
            _gates(ahead[-1], self._gates) if looks_at is not None else None,
            taken[ahead[-1].kind],
            record.schedule(ahead[-1].kind),
            builds=1 + len(now.heads),
            cold=now.cell.cell_id not in self._begun,
        )


def _stays(last: Due, now: Due) -> bool:
    """Whether a cell is gone on with whatever others there are."""
    starts = any(plan.gate.metric in ("start_time", COLD_START) for plan in now.cell.gates)
    return starts or not (last.decides and now.decides)


def _looked(now: Due) -> bool:
    """Whether what is due comes after a first look."""
    return any(gate.pairs for gate in now.judged.gates if gate.kind == now.kind)


def _own_history(run: Run, record: Record | None) -> dict[Kind, Earlier]:
    """What a run knows of a cell by itself; of several heads the first will do."""
    first = next(iter(record.comparisons().values())) if record else None
    return {kind: Earlier(run.name, first) for kind in first.cell.kinds if len(first.pairs(kind)) > 1} if first else {}


def _fresh(cell: Cell, gates_in_run: int, builds: int) -> _Stretch:
    """Of a cell of which nothing was measured."""
    looks_at = next((kind for kind in cell.kinds if cell.gates_on(kind)), None)
    kinds = cell.kinds[: None if looks_at is None else cell.kinds.index(looks_at) + 1]
    return _Stretch(
        cell,
        {kind: cell.due_in_pairs(kind) for kind in kinds},
        _unseen(cell, looks_at, gates_in_run) if looks_at else None,
        0,
        cell.schedule(looks_at or "timed"),
        builds,
        cold=True,
    )


def _unseen(cell: Cell, kind: Kind, gates_in_run: int) -> list[_Gate]:
    plans = [plan for plan in cell.gates if plan.gate.measured.kind == kind]
    return [_Gate(plan, ALPHA / gates_in_run, (plan.gate.ignorable, plan.gate.must_catch)) for plan in plans]


def _gates(now: Due, gates_in_run: int) -> list[_Gate]:
    """The gates that the next look may decide, as the last one found them; of a state's share nobody knows a chance."""
    if not _looked(now):
        return _unseen(now.cell, now.kind, gates_in_run)
    plans = {plan.gate.measured.name: plan for plan in now.cell.gates}
    gates = [gate for gate in now.judged.gates if gate.kind == now.kind and gate.verdict == "inconclusive"]
    return [
        _Gate(
            plans[gate.metric],
            gate.block_level,
            (gate.ignorable, gate.must_catch),
            gate.pairs,
            math.log1p(gate.slowdown(gate.change or 0.0)),
            gate.pair_sd,
        )
        for gate in gates
        if gate.metric in plans
    ]
