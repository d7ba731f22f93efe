"""Cells, records and runs made by hand, so that a test names only what matters to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import GateOutcome, Outcome
from perfgate.machine.fingerprint import Machine
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Iteration, Startup, Trial
from perfgate.models import Note
from perfgate.record.manifest import SCENARIOS
from perfgate.record.run_record import Record, Run, Visit
from perfgate.rooms import FOLDER
from perfgate.scenario.declaration import Clocks, Measure, Scenario, dump, parse
from perfgate.scenario.margins import Gate
from perfgate.scenario.plan import Cell, GatePlan, Plan, resolve_cells
from perfgate.scenario.schedule import Spend
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Engine, Model, Workload
from perfgate.stats.sequential import EARLY_SCHEDULE

BASE = Subject(python="/envs/base/bin/python")
HEAD = Subject(python="/envs/head/bin/python")
BOTH: dict[Side, Subject] = {"base": BASE, "head": HEAD}
MACHINE = Machine(architecture="x86_64", cpu="Test CPU", cores=2)
STEP_S = 0.005
"""The decode step of the base."""


def gate(metric: str = "itl_median", ignorable: str = "0.1%", must_catch: str = "0.5%", **more: Any) -> GatePlan:
    """A gate with the margins of docs/design.md."""
    declared = Gate.model_validate({"metric": metric, "ignorable": ignorable, "must_catch": must_catch, **more})
    return GatePlan(gate=declared, where="hand-made.yaml:9")


def cell(name: str = "cell", gates: Sequence[GatePlan] | None = None, **measure: Any) -> Cell:
    """A cell of one request with three tokens; ``cell_id`` is its name. It is looked at from four pairs on."""
    if "spend" not in measure:
        measure.setdefault("looks", EARLY_SCHEDULE.looks)
    if "spend" in measure:
        measure["spend"] = Spend.model_validate(measure["spend"])
    return Cell(
        name=name,
        scenario=name.partition("[")[0],
        source="hand-made.yaml",
        engine=Engine(model=Model(config="model")),
        model_digest="0" * 64,
        model_folder=None,
        workload=Workload(batch=1, input_tokens=4, output_tokens=3),
        measure=Measure(warmup_iterations=0, iterations=1, **measure),
        clocks=Clocks(),
        gates=tuple(gates) if gates is not None else (gate(),),
        cell_id=name,
    )


def iteration(step_s: float = STEP_S, tokens: str = "tokens", **changes: Any) -> Iteration:
    """An iteration whose every time is proportional to its step: first token after 20 of them, last after 22."""
    step_ns = round(step_s * 1e9)
    figures = {"ttft_ns": (20 * step_ns,), "e2e_ns": (22 * step_ns,), "itl_ns": (step_ns,), "elapsed_ns": 22 * step_ns}
    return Iteration(**{**figures, "output_tokens": 3, "tokens_digest": tokens, "begin_ns": 0, **changes})


def trial(index: int, pair: int | None, side: Side, step_s: float = STEP_S, **changes: Any) -> Trial:
    """A valid trial with that decode step."""
    measured = {
        "iterations": (iteration(step_s),),
        "startup": Startup(import_ns=10**9, engine_ns=10**9, ready_ns=3 * 10**9),
        "versions": {"vllm": "1.0"},
    }
    blank = {"position": 0, "visit": 0, "t0_utc": "2026-01-01T00:00:00+00:00", "duration_ns": 10**9}
    return Trial(index=index, pair=pair, subject=side, **{**blank, **measured, **changes})


def failed(index: int, pair: int | None, side: Side, code: str = "engine-failed", text: str = "died") -> Trial:
    """A trial that failed."""
    nothing: dict[str, Any] = {"iterations": (), "startup": None, "versions": {}}
    return trial(index, pair, side, failure=Failure(code=code, text=text), **nothing)


def trials(slowdowns: Sequence[float], base: Sequence[float] = ()) -> tuple[Trial, ...]:
    """Pairs with these log ratios; ``base`` holds the base's steps, the usual one where it is empty."""
    steps = base or [STEP_S] * len(slowdowns)
    return tuple(
        one
        for n, (d, step_s) in enumerate(zip(slowdowns, steps, strict=True))
        for one in (trial(2 * n, n, "base", step_s), trial(2 * n + 1, n, "head", step_s * math.exp(d)))
    )


def record(measured: Cell, taken: Sequence[Trial] = (), **changes: Any) -> Record:
    """The record of one visit with these trials."""
    visit = Visit(machine=MACHINE, t0_utc="2026-01-01T00:00:00+00:00")
    return Record(
        **{"cell": measured, "subjects": BOTH, "seed": 0, "visits": (visit,), "trials": tuple(taken), **changes}
    )


def run(cells: Sequence[Cell], **changes: Any) -> Run:
    """A manifest of these cells."""
    plan = Plan(cells=tuple(cells), seed=0)
    return Run(**{"name": "hand-made", "plan": plan, "subjects": BOTH, "perfgate": "0.0", **changes})


def spread(mean: float, half_width: float, count: int) -> list[float]:
    """Log ratios that alternate about their mean, starting above it."""
    return [mean + half_width * (-1) ** n for n in range(count)]


def begin_project(folder: Path) -> None:
    """Make a folder the root of a project: without the room that reads its ``perfgate.toml`` commands refuse one."""
    if (FOLDER / "project").is_dir():
        (folder / "perfgate.toml").touch()


def scenario_file(folder: Path, name: str = "tiny", gates: str = "", more: str = "") -> Path:
    """A scenario on disk, with a model beside it, whose trials a fake takes in milliseconds."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    begin_project(folder)
    file = folder / f"{name}.yaml"
    file.write_text(f"""schema: 1
name: {name}
engine: {{model: {{config: model}}, args: {{max_num_seqs: 4}}}}
workload: {{batch: 2, input_tokens: 4, output_tokens: 8}}
measure: {{looks: [4, 6, 8, 12], warmup_iterations: 1, iterations: 2}}
gates: [{gates or "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"}]
{more}
""")
    return file


def keep_scenario(folder: Path, measured: Cell) -> Cell:
    """Put the scenario that declares a cell into a run folder; the cell as that declares it, with its real id."""
    declared = Scenario.model_validate(
        {"schema": 1, "name": measured.scenario, **{key: getattr(measured, key) for key in _DECLARED}}
        | {"gates": tuple(gate.gate for gate in measured.gates)}
    )
    text = dump(declared)
    (folder / SCENARIOS).mkdir(parents=True, exist_ok=True)
    (folder / SCENARIOS / f"{measured.scenario}.yaml").write_text(text)
    (resolved,) = resolve_cells(parse(text, Path(measured.source)), (measured.model_digest, measured.model_folder))
    return resolved


_DECLARED = ("engine", "workload", "measure", "clocks", "kernels", "counters", "counted", "calls")


def judged(taken: Sequence[Trial], measured: Cell | None = None, **changes: Any) -> Outcome:
    """The outcome of a run of one cell with these trials."""
    measured = measured or cell()
    return judge(run([measured]), {measured.cell_id: record(measured, taken, **changes)})


def only(outcome: Outcome) -> GateOutcome:
    """The one gate of the one cell."""
    (one,) = outcome.cells
    (found,) = one.gates
    return found


def codes(notes: Sequence[Note]) -> list[str]:
    """The codes of notes, in order."""
    return [note.code for note in notes]
