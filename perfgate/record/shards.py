"""Shards: a plan divided among machines by what its cells cost, as a matrix that GitHub's ``strategy`` takes as it is.

Nothing is scheduled here. The matrix is printed once; each machine is given it with the number of its shard, and
refuses to measure if what it has there is another plan.
"""

from __future__ import annotations

import itertools
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import ConfigDict, Field, model_validator

from perfgate.errors import NotMeasuredError, RecordError, UsageError
from perfgate.machine.json_text import MANIFEST, parse_json
from perfgate.machine.versioned_json import read_bytes, validated
from perfgate.models import Frozen
from perfgate.record.cost import kind_cost, newest_records
from perfgate.record.run_names import RUN
from perfgate.record.run_record import read_run
from perfgate.scenario.part import Attempt, Part, RunName, plan_digest
from perfgate.scenario.plan import BETA, Cell, ErrorRate, Plan

_Model = TypeVar("_Model", bound=Frozen)

LABELS = ("self-hosted", "linux", "gpu")
"""Of the machines that measure, where ``perfgate.toml`` names no classes of them."""


@dataclass(frozen=True)
class MachineClass:
    """Machines that are alike, with the labels by which a CI finds one; a project may name no class."""

    name: str = ""
    labels: tuple[str, ...] = LABELS


class Shard(Frozen):
    """One entry of the matrix.

    Args:
        shard: ``2/3``.
        runs_on: Labels of the machine that is to measure it.
        machine: The name of its class.
        minutes: What its cells cost up to their last look; ``None`` where that is not known of any.
        cells: Their names.
        gates: Gates of the whole plan for each head.
        plan: Digest of the whole plan and its division.
        run: Name of the run that all shards make together.
        seed: Draws the order within each pair.
        attempt: That of the job which printed the plan.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    shard: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}/[1-9][0-9]{0,3}$")]
    runs_on: Annotated[tuple[str, ...], Field(alias="runs-on")]
    machine: str
    minutes: float | None
    cells: tuple[str, ...]
    gates: int
    plan: str
    run: RunName
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    attempt: Attempt = 1


class ShardPlan(Frozen):
    """The matrix: every shard from the first, as ``perfgate plan`` prints it."""

    include: Annotated[tuple[Shard, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _of_one_plan(self) -> Self:
        count = len(self.include)
        if [entry.shard for entry in self.include] != [f"{number}/{count}" for number in range(1, count + 1)]:
            raise ValueError(f"include: expected every shard of one plan, from 1/{count}")
        if len({(entry.plan, entry.run, entry.seed, entry.gates, entry.attempt) for entry in self.include}) > 1:
            raise ValueError("include: its entries are of several plans")
        return self

    @property
    def run(self) -> str:
        """Name of the run that all shards make together."""
        return self.include[0].run

    @property
    def seed(self) -> int:
        """Draws the order within each pair."""
        return self.include[0].seed

    @property
    def digest(self) -> str:
        """Of the whole plan and its division."""
        return self.include[0].plan

    @property
    def attempt(self) -> int:
        """That of the job which printed it, and of every job that may measure it."""
        return self.include[0].attempt

    @property
    def shards(self) -> tuple[tuple[str, ...], ...]:
        """The names of the cells of each shard."""
        return tuple(entry.cells for entry in self.include)

    def numbered(self, word: str, left: ShardsLeft | None = None, attempt: int | None = None) -> Assigned:
        """The shard that ``K/N`` names, or those of its cells that are ``left``, where this is a second try.

        The attempt of its job is that of the plan's where not given.

        Raises:
            UsageError: There is none of that name, or nothing of it is left.
        """
        words = [entry.shard for entry in self.include]
        if word not in words:
            raise UsageError(f"--shard {word}: the plan has {words[0]} to {words[-1]}")
        number = words.index(word) + 1
        if left is None:
            return Assigned(plan=self, number=number, attempt=attempt or self.attempt)
        whole = self.include[number - 1].cells
        cells = next((entry.cells for entry in left.include if (entry.shard, entry.plan) == (word, self.digest)), ())
        if not cells or not {*cells} <= {*whole}:
            remedy = "Give what perfgate plan --left printed of this plan."
            raise UsageError(f"--left: nothing of shard {word} of this plan is left", remedy=remedy)
        return Assigned(plan=self, number=number, attempt=attempt or self.attempt, again=cells)


class ShardsLeft(Frozen):
    """The shards of which something is left to measure, each with those cells alone: ``perfgate plan --left``."""

    include: tuple[Shard, ...]


class Assigned(Frozen):
    """A shard that this machine is to measure.

    Args:
        plan: As it was printed.
        number: From 1.
        attempt: Which attempt of its job measures it.
        again: The cells of the shard that are measured, where this is a second try; not written where it is the first.
        beta: That of its plan; another one where what was measured before has spent the rest.
    """

    plan: ShardPlan
    number: int
    attempt: Attempt = 1
    beta: ErrorRate = Field(default=BETA, exclude_if=lambda beta: beta == BETA)
    again: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)

    def part(self, plan: Plan) -> Part:
        """The part that it is of the plan that this machine has.

        Raises:
            NotMeasuredError: ``shard-foreign``: that is another plan than was printed.
        """
        if plan_digest(plan, self.plan.run, self.plan.shards) != self.plan.digest:
            text = f"the scenarios here make another plan than {self.plan.digest[:12]}, of which this is a shard"
            where = f"shard {self.plan.include[self.number - 1].shard}"
            raise NotMeasuredError(text, where=where, code="shard-foreign")
        again = (self.again,) if self.again else ()
        return Part(
            run=self.plan.run, shards=self.plan.shards, numbers=(self.number,), attempt=self.attempt, again=again
        )


def read_shard_plan(file: Path) -> ShardPlan:
    """The matrix that a file holds; raises as :func:`parse_shard_plan`."""
    return parse_shard_plan(read_bytes(file, MANIFEST), str(file))


def parse_shard_plan(text: str | bytes, where: str) -> ShardPlan:
    """The matrix that a text holds, which may be anybody's.

    Raises:
        RecordError: It is not what ``perfgate plan`` printed.
    """
    return _parsed(ShardPlan, text, where, "plan")


def parse_shards_left(text: str | bytes, where: str) -> ShardsLeft:
    """What is left of a plan, as a text holds it; raises as :func:`parse_shard_plan`."""
    return _parsed(ShardsLeft, text, where, "plan --left")


def _parsed(model: type[_Model], text: str | bytes, where: str, command: str) -> _Model:
    try:
        return validated(model, parse_json(text, MANIFEST), where)
    except ValueError as error:
        raise RecordError(f"not what perfgate {command} printed: {error}", where=where) from error


def divide(
    plan: Plan,
    run: str,
    most: int,
    prices: Mapping[str, float | None],
    classes: Mapping[str, MachineClass],
    attempt: int = 1,
) -> ShardPlan:
    """Divide a plan into ``most`` shards or fewer, of about the same price.

    Neighbouring cells of one engine share what it compiles, so they stay together as long as they cost no more than a
    shard's share. Prices are minutes by the cell's name, and ``None`` counts as their mean; so are machine classes.

    Raises:
        UsageError: There are more classes than shards.
    """
    minutes = [price for price in prices.values() if price is not None]
    usual = statistics.fmean(minutes) if minutes else 1.0
    cost = {name: usual if price is None else price for name, price in prices.items()}
    of_class: dict[MachineClass, list[Cell]] = {}
    for cell in plan.cells:
        of_class.setdefault(classes[cell.name], []).append(cell)
    if len(of_class) > most:
        names = ", ".join(machine.name for machine in of_class)
        raise UsageError(f"--shards {most}: there are {len(of_class)} classes of machines: {names}")
    costs = {machine: [cost[cell.name] for cell in cells] for machine, cells in of_class.items()}
    counts = dict.fromkeys(costs, 1)  # one for each class, and then always one more where a shard is longest
    for _ in range(most - len(costs)):
        longest = max(
            costs,
            key=lambda machine: (
                sum(costs[machine]) / counts[machine] if counts[machine] < len(costs[machine]) else -1.0
            ),
        )
        counts[longest] = min(counts[longest] + 1, len(costs[longest]))
    divided = [
        (machine, cells) for machine, count in counts.items() for cells in _balanced(of_class[machine], cost, count)
    ]
    return printed(plan, run, divided, cost if minutes else {}, attempt)


def cell_by_cell(plan: Plan, run: str, classes: Mapping[str, MachineClass]) -> ShardPlan:
    """A plan with a shard for each cell, for what finds a machine for every one; see :func:`divide`."""
    return printed(plan, run, [(classes[cell.name], [cell]) for cell in plan.cells], {})


def printed(
    plan: Plan,
    run: str,
    divided: Sequence[tuple[MachineClass, Sequence[Cell]]],
    cost: Mapping[str, float],
    attempt: int = 1,
) -> ShardPlan:
    """The matrix of a plan's cells as they are divided among machines; without costs no shard has a price."""
    shards = [[cell.name for cell in cells] for _, cells in divided]
    digest = plan_digest(plan, run, shards)
    gates = sum(len(cell.gates) for cell in plan.cells)
    return ShardPlan(
        include=tuple(
            Shard(
                shard=f"{number}/{len(divided)}",
                runs_on=machine.labels,
                machine=machine.name,
                minutes=round(sum(cost[name] for name in names), 1) if cost else None,
                cells=tuple(names),
                gates=gates,
                plan=digest,
                run=run,
                seed=plan.seed,
                attempt=attempt,
            )
            for number, ((machine, _), names) in enumerate(zip(divided, shards, strict=True), 1)
        )
    )


def price(cell: Cell, runs: Path) -> float | None:
    """Minutes of a cell up to its last looks, by its newest record there, else by what its scenario expects.

    ``None`` where no kind of its trials has a price.
    """
    history = newest_records(runs, cell)
    minutes = [kind_cost(cell, kind, history.get(kind)).minutes for kind in cell.kinds]
    return sum(by_look[-1] for by_look in minutes if by_look) if any(minutes) else None


def _balanced(cells: Sequence[Cell], cost: Mapping[str, float], count: int) -> list[list[Cell]]:
    """Cells in so many shards at most, the longest group first into the shortest shard; each in the plan's order."""
    share = sum(cost[cell.name] for cell in cells) / count
    groups: list[list[Cell]] = []
    engine = operator.attrgetter("scenario", "model_digest", "engine.identity")
    for _, together in itertools.groupby(cells, key=engine):
        groups.append([])
        for cell in together:
            if groups[-1] and sum(cost[other.name] for other in (*groups[-1], cell)) > share * (1 + 1e-9):
                groups.append([])
            groups[-1].append(cell)
    shards: list[list[Cell]] = [[] for _ in range(count)]
    for group in sorted(groups, key=lambda group: -sum(cost[cell.name] for cell in group)):
        min(shards, key=lambda shard: sum(cost[cell.name] for cell in shard)).extend(group)
    places = {cell.name: place for place, cell in enumerate(cells)}
    filled = [sorted(shard, key=lambda cell: places[cell.name]) for shard in shards if shard]
    return sorted(filled, key=lambda shard: places[shard[0].name])


def is_shard(folder: Path) -> bool:
    """Whether a folder is that of a part of a plan, or holds one, and so is judged with the others only."""
    manifests = [*folder.glob(RUN), *folder.glob(f"*/{RUN}")]
    parts = [read_run(file.parent).part for file in manifests[:1]]
    return any(part is not None and not part.joined for part in parts)
