"""The plan: which cells a run measures, in which order, from one seed.

Pure: nothing is started, no clock is read. A cell is one fully resolved point of a scenario; its ``cell_id`` decides
what may be compared with what.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from perfgate.errors import UsageError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.kinds import TRIAL_KINDS, known, taken_by
from perfgate.metrics.trial import KINDS, Kind
from perfgate.models import Frozen, Strict, absent
from perfgate.scenario.counter_trials import CounterTrials, Launches
from perfgate.scenario.declaration import (
    AnyWorkload,
    Clocks,
    LoadedScenario,
    Measure,
    Scenario,
    model_folder,
)
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.fields import Name
from perfgate.scenario.margins import Gate
from perfgate.scenario.model_digest import model_digest
from perfgate.scenario.schedule import CallTrials, Sampling
from perfgate.scenario.work import Work, work_of
from perfgate.scenario.workload import MATRIX_WORKLOAD_KEYS, Engine, Workload
from perfgate.stats.sequential import Schedule

ALPHA = 0.01
"""Probability of any false block, a run (docs/design.md)."""
BETA = 0.05
"""Probability of passing a regression of must_catch size, a gate."""
ErrorRate = Annotated[float, Field(gt=0, lt=0.5)]
"""From one half on a coin would decide as well."""
Model = tuple[str, str | None]
"""A model's digest, and its absolute folder where it has one."""


class GatePlan(Frozen):
    """A gate with the place that declares it, ``file:line``."""

    gate: Gate
    where: str


class Cell(Frozen):
    """One fully resolved point of a scenario.

    Args:
        name: The scenario's name, with the matrix values in brackets where it has any.
        scenario: The scenario's name.
        source: The scenario's file as the user gave it.
        engine: Engine arguments with matrix values filled in.
        model_digest: SHA-256 of the model's ``config.json`` and of files like ``hf_quant_config.json`` beside it, of
            names and sizes of real weights, and of the files that arguments name by ``{model}/``; or the hub's name and
            revision.
        model_folder: Absolute folder of the model, or ``None`` for one on the hub.
        workload: With matrix values filled in, and digests of the files that it names.
        kernels: How traced trials are taken and what a step may run; ``None`` where nothing is traced.
        counters: Which launches are counted; none where nothing is.
        counted: How they are.
        calls: How what the host calls is counted; ``None`` where it is not, and then not written.
        sampled: How it is looked where the host's time goes; ``None`` where it is not, and then not written.
        pairing: ``sequential``: one engine at a time.
    """

    name: str
    scenario: Name
    source: str
    engine: Engine
    model_digest: str
    model_folder: str | None
    workload: AnyWorkload
    measure: Measure
    clocks: Clocks
    gates: tuple[GatePlan, ...]
    kernels: Annotated[Expectation | None, taken_by("traced")] = None
    counters: Annotated[tuple[Launches, ...], taken_by("counted")] = ()
    counted: CounterTrials = CounterTrials()
    calls: Annotated[CallTrials | None, taken_by("called"), Field(exclude_if=absent)] = None
    sampled: Annotated[Sampling | None, taken_by("sampled"), Field(exclude_if=absent)] = None
    pairing: Literal["sequential"] = "sequential"
    cell_id: str

    def sampling(self, kind: Kind) -> Sampling | None:
        """How trials of a kind are sampled; ``None`` where the cell does not declare that kind."""
        entry = TRIAL_KINDS[known(kind)]
        if entry.block and not getattr(self, entry.block):
            return None
        declared: Sampling | None = attrgetter(entry.sampling)(self)
        return declared

    def schedule(self, kind: Kind) -> Schedule:
        """The looks declared for pairs of this kind; the usual ones where the cell does not declare it."""
        return (self.sampling(kind) or Sampling()).schedule

    def gates_on(self, kind: Kind) -> bool:
        """Whether a gate rests on trials of this kind."""
        return any(gate.gate.measured.kind == kind for gate in self.gates)

    def explains_by(self, kind: Kind) -> bool:
        """Whether trials of a kind only show the cause of what a gate blocked."""
        return kind == "traced" and self.kernels is not None and self.kernels.explains

    def looks(self, kind: Kind) -> tuple[int, ...]:
        """Pairs at which trials of a kind may end; empty where none is taken.

        Without a gate nothing is timed, and one trial tells what a step runs, what its kernels count, what its host
        calls or where that spends its time. Nothing is due of what is traced only where a gate blocked.
        """
        if self.explains_by(kind):
            return ()
        if self.gates_on(kind):
            return self.schedule(kind).looks
        return (1,) if kind != "timed" and self.sampling(kind) is not None else ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of trial that are taken, in that order."""
        return tuple(kind for kind in KINDS if self.looks(kind))

    def due_alone(self, kind: Kind) -> int:
        """Trials of one side alone: fewer than the first look that may block could show no regression to anybody."""
        first = self.schedule(kind).first_blocking if self.gates_on(kind) else None
        return first[0] if first else max(self.looks(kind), default=0)

    def due_in_pairs(self, kind: Kind) -> int:
        """Pairs without which nothing of this kind can be decided."""
        return min(self.looks(kind), default=0)

    @property
    def batch(self) -> Workload:
        """The workload of a cell that decodes a batch.

        Raises:
            TypeError: It does not.
        """
        if not isinstance(self.workload, Workload):
            raise TypeError(f"{self.name} has no batch")
        return self.workload

    @property
    def work(self) -> Work:
        """What its engines are given, with what depends on their driver."""
        return work_of(self.engine.driver)(self.workload)

    @property
    def slug(self) -> str:
        """A file name for this cell, unique among cells."""
        readable = re.sub(r"[^a-z0-9._-]+", "-", self.name.lower()).strip("-")[:80]
        return f"{readable}-{self.cell_id[:8]}"


Orders = Literal["blocks", "coins"]
"""How the order within each pair is drawn: one for two pairs, which get one order each, or one for each pair."""
OLD_ORDERS: Final[Orders] = "blocks"
"""Of the runs that do not say; a field of that value is not written, so that older records keep their digest."""
FIRST_PAIRS: Final = 4


def orders_bound(heads: int, orders: Orders = "coins") -> float:
    """How many times as probable as with a fair coin for every pair a set of orders of the kind ``coins`` is at most.

    A p value by fair coins is valid times this. It is one over the probability that the first four pairs, or rounds,
    are not drawn again: 16/14 for one head. For several by inclusion and exclusion: in a round that is drawn evenly
    ``before`` given heads come before the base and ``after`` others behind it with probability
    before! after! / (before + after + 1)!.

    Args:
        heads: Heads of the run, from 1.
        orders: Infinite where the order of each pair was not drawn.
    """
    if orders != "coins":
        return math.inf
    kept = 0.0
    for before, after in itertools.product(range(heads + 1), repeat=2):
        ways = math.comb(heads, before) * math.comb(heads - before, after)
        chance = math.factorial(before) * math.factorial(after) / math.factorial(before + after + 1)
        kept += (-1) ** (before + after) * ways * chance**FIRST_PAIRS
    return 1 / kept


OrdersField = Annotated[Orders, Field(exclude_if=lambda orders: orders == OLD_ORDERS)]


class Plan(Frozen):
    """What a run sets out to measure.

    Args:
        cells: In the order of the scenarios; which is measured first is up to a run.
        seed: Draws the order within each pair.
        orders: How.
        alpha: Declared probability of any false block in the run.
        beta: Declared probability of passing a gate that regressed by must_catch.
    """

    cells: tuple[Cell, ...]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    orders: OrdersField = OLD_ORDERS
    alpha: ErrorRate = ALPHA
    beta: ErrorRate = BETA


def make_plan(scenarios: tuple[LoadedScenario, ...], seed: int, orders: Orders = "coins") -> Plan:
    """Resolve scenarios into the cells of one run.

    Args:
        scenarios: Loaded, each with a name of its own.
        seed: Draws the order within each pair.
        orders: How; a run that goes on keeps the way that it began with.

    Raises:
        UsageError: Two scenarios have one name, or two cells are the same measurement.
    """
    named: dict[str, LoadedScenario] = {}
    for loaded in scenarios:  # a run folder keeps each by its name
        if (namesake := named.setdefault(loaded.scenario.name, loaded)) is not loaded:
            raise UsageError(f"{namesake.file} has the same name, {loaded.scenario.name}", where=loaded.where("name"),
                             remedy="Name each scenario once, and give each a name of its own.")  # fmt: skip
    cells = tuple(cell for scenario in scenarios for cell in resolve_cells(scenario))
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.cell_id in seen:
            raise UsageError(f"{cell.name} and {seen[cell.cell_id].name} are the same cell", where=cell.source)
        seen[cell.cell_id] = cell
    return Plan(cells=cells, seed=seed, orders=orders)


def resolve_cells(
    loaded: LoadedScenario, model: Model | None = None, measured: Strict | None = None
) -> tuple[Cell, ...]:
    """The cells of a scenario: every combination of its matrix, in the order written, the last key fastest.

    Args:
        loaded: The scenario.
        model: The model as it was found on another machine; read from this one's disk where not given.
        measured: The same of the workload of a cell, of which the digests of files are taken.

    Raises:
        UsageError: The model, or a file of the workload, cannot be read.
    """
    model, work = model or _read_model(loaded), loaded.scenario.work
    workload = work.pinned(loaded.file) if measured is None else work.pinned_as(measured)
    return tuple(_cell(loaded, point, model, workload) for point in points(loaded.scenario))


def points(scenario: Scenario) -> Iterator[dict[str, JsonValue]]:
    """The combinations of a scenario's matrix, in the order of its cells."""
    keys = list(scenario.matrix)
    for values in itertools.product(*(scenario.matrix[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def head_first(seed: int, cell_id: str, pair: int, orders: Orders) -> bool:
    """Whether the head runs first in this pair, as the seed draws it.

    With ``coins`` each pair has a fair coin of its own, but the first four are not all alike: were they, a trial that
    is slower only because it is the second of its pair would look like a slower side (docs/decisions.md). With
    ``blocks`` two pairs share a coin and have one of each order.

    ``random.random()`` of a seeded generator is the one stream that Python promises to keep between versions.
    """
    if orders == "blocks":
        block, position = divmod(pair, 2)
        return (round(_drawn(f"order {seed} {cell_id} {block}")) + position) % 2 == 0
    if pair < FIRST_PAIRS:
        unlike = 1 + int(_drawn(f"first orders {seed} {cell_id}") * (2**FIRST_PAIRS - 2))  # neither no bit nor all
        return bool(unlike >> pair & 1)
    return _drawn(f"order of a pair {seed} {cell_id} {pair}") < 0.5  # noqa: PLR2004 (a fair coin)


def round_order(seed: int, cell_id: str, pair: int, heads: Collection[str]) -> tuple[str, ...]:
    """The order in which the base and several heads run in a round, as the seed draws it; some may be left out.

    Every order is as probable as any other, so that no build is first, or beside the base, more often than another. The
    first four rounds are drawn again until no head is before the base in all of them or after it in all, as with
    :func:`head_first`.

    Returns:
        ``base`` and the names of the heads.
    """

    def drawn(number: int, again: int) -> tuple[str, ...]:
        place = f"round {number} {seed} {cell_id} {again}"
        return tuple(sorted(("base", *heads), key=lambda label: _drawn(f"{place} {label}")))

    if pair >= FIRST_PAIRS:
        return drawn(pair, 0)
    for again in itertools.count():
        first = [drawn(number, again) for number in range(FIRST_PAIRS)]
        if all(len({order.index(head) < order.index("base") for order in first}) > 1 for head in heads):
            return first[pair]
    raise AssertionError  # an endless count


def _drawn(text: str) -> float:
    """Uniform in [0, 1), fixed by the text for good."""
    return random.Random(text).random()  # noqa: S311 (no secret)


def prompts(workload: Workload, vocabulary: int, iteration: int) -> list[list[int]]:
    """Token-id prompts of one iteration, (batch, input_tokens): the same on both sides and in every trial.

    Iterations differ, so that a prefix cache finds nothing. The first ids of a vocabulary are often special tokens,
    so the first 16 are left out where the vocabulary is large enough. Where a token marks an image, prompts begin
    with it, an image each, and have it nowhere else.
    """
    draw = random.Random(f"prompts {workload.seed} {iteration}").random  # noqa: S311 (no secret)
    lowest = 16 if vocabulary > 32 else 0  # noqa: PLR2004 (explained above)
    span = vocabulary - lowest
    texts = [[lowest + int(draw() * span) for _ in range(workload.input_tokens)] for _ in range(workload.batch)]
    if workload.images is None or (token := workload.images.token) is None:
        return texts
    other = token + 1 if token + 1 < vocabulary else lowest
    shown = [token] * workload.images.count
    return [
        (shown + [other if token_id == token else token_id for token_id in text])[: workload.input_tokens]
        for text in texts
    ]


def _cell(loaded: LoadedScenario, point: dict[str, JsonValue], model: Model, workload: Strict) -> Cell:
    scenario = loaded.scenario
    if sizes := {k: v for k, v in point.items() if k in MATRIX_WORKLOAD_KEYS}:
        workload = type(workload).model_validate(workload.model_dump() | sizes)
    args = scenario.engine.args | {k: v for k, v in point.items() if k not in MATRIX_WORKLOAD_KEYS}
    engine = scenario.engine.model_copy(update={"args": args})
    label = ",".join(f"{key}={json.dumps(value)}" for key, value in point.items())
    digest, folder = model
    return Cell(
        name=f"{scenario.name}[{label}]" if label else scenario.name,
        scenario=scenario.name,
        source=str(loaded.file),
        engine=engine,
        model_digest=digest,
        model_folder=folder,
        workload=workload,
        measure=scenario.measure,
        clocks=scenario.clocks,
        gates=tuple(GatePlan(gate=g, where=loaded.where("gates", n)) for n, g in enumerate(scenario.gates)),
        kernels=scenario.kernels,
        counters=scenario.counters,
        counted=scenario.counted,
        calls=scenario.calls,
        cell_id=_cell_id(digest, engine, workload, scenario.measure, scenario.clocks),
    )


def _cell_id(model_digest: str, engine: Engine, workload: Strict, measure: Measure, clocks: Clocks) -> str:
    """The digest of everything that changes what is measured, and of nothing that only judges or describes it."""
    identity = {
        "model": model_digest,
        "engine": engine.identity,
        "workload": workload.model_dump(mode="json"),
        "measure": measure.identity,
        "clocks": clocks.model_dump(mode="json"),
        "pairing": "sequential",
    }
    return sha256_hex(json.dumps(identity, sort_keys=True, separators=(",", ":")))


def _read_model(loaded: LoadedScenario) -> Model:
    folder = model_folder(loaded)
    try:
        return model_digest(loaded.scenario, folder), str(folder) if folder else None
    except OSError as error:
        raise UsageError(f"the model cannot be read: {error}", where=loaded.where("engine", "model")) from error
