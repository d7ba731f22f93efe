"""Scenarios: what the user declares, as frozen models, and the YAML reader that points at what is wrong.

Loading never executes anything: YAML 1.2 by ruamel's safe loader, no aliases, no environment expansion, paths confined
to the repository. Every problem is reported as ``file:line:column: field: text``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, create_model, field_validator, model_validator

from perfgate.errors import ScenarioError
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.kinds import TRIAL_KINDS, known, taken_by
from perfgate.models import LARGEST, Duration, FieldError, FieldPath, Listed, Percent, Positive, Strict, absent
from perfgate.scenario.counter_trials import STEPS_BEHIND, CounterTrials, Launches
from perfgate.scenario.drivers import DRIVERS, declared_driver
from perfgate.scenario.expected_kernels import Expectation, not_traced
from perfgate.scenario.fields import ArgumentName, Name, whole_number
from perfgate.scenario.kernel_names import ROLES, UNLISTED
from perfgate.scenario.local_files import model_problem, repository_root
from perfgate.scenario.margins import Budget, DriftBudget, Gate
from perfgate.scenario.schedule import CallTrials, Sampling
from perfgate.scenario.shown_images import check_images
from perfgate.scenario.work import Work, check_work, work_of
from perfgate.scenario.workload import MATRIX_WORKLOAD_KEYS, Engine, Workload, images_of, no_folder
from perfgate.scenario.yaml_document import Document, describe_fields, did_you_mean, draft_07, read_document, read_text
from perfgate.scenario.yaml_writing import replace_block, write_document

if TYPE_CHECKING:
    AnyWorkload = Strict
else:
    AnyWorkload = Union[tuple(dict.fromkeys(work_of(name).model for name in DRIVERS))]  # noqa: UP007 (a list of them)

MAX_CELLS = 256
"""A matrix multiplies; more cells than this are a slip."""
MIN_DECODE_TOKENS = 3
"""The first token ends prefill, the second a gap that touches it, the third the first full decode step."""


class Expect(Strict):
    """What the author of a scenario has seen of it, for the price that ``perfgate check`` names before a first run.

    Args:
        trial_s: Seconds that a timed trial takes.
        pair_sd: Standard deviation of the pairs' log ratios, for every gate on timed trials, or by metric.
    """

    trial_s: Annotated[float, Field(gt=0, le=LARGEST, examples=[30])]
    pair_sd: Annotated[Percent | dict[str, Percent], Field(examples=["0.1%"])]

    def sd_of(self, metric: Metric) -> float | None:
        """The spread expected of a metric; ``None`` where none is named."""
        if isinstance(self.pair_sd, dict):
            return self.pair_sd.get(metric.name)
        return self.pair_sd if metric.kind == "timed" else None


class Choose(Strict):
    """Bounds of a number of iterations that is chosen before the first judged pair, for both sides.

    Args:
        least: No fewer.
        most: No more.
    """

    least: Annotated[int, Field(ge=1, le=10_000, examples=[4])] = 4
    most: Annotated[int, Field(ge=1, le=10_000, examples=[60])] = 60

    @model_validator(mode="after")
    def _some_between(self) -> Choose:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self


class Measure(Sampling):
    """The measurement plan of one cell.

    Args:
        warmup_iterations: Iterations run and not counted in each trial.
        iterations: Iterations counted in each trial; with ``choose``, where nothing else is known.
        choose: Bounds of a number of iterations that is chosen instead: by what restarts and iterations spread by and
            cost, that which leads to a decision soonest.
        looks: Numbers of pairs at which a decision is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 6, 8, 12 or of 4, 6, 8, 12.
        max_dropped_pairs: Pairs that may fail and be replaced, over all visits, before the cell counts as not measured.
        start_timeout: Limit for the start of an engine.
        iteration_timeout: Limit for one iteration.
        expect: Seconds a trial and spread of the pairs, for the price before the first run; no part of the cell.
    """

    warmup_iterations: Annotated[int, Field(ge=0, le=1000)] = 2
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 20
    choose: Annotated[Choose | None, Field(exclude_if=absent)] = None
    max_dropped_pairs: Annotated[int, Field(ge=0, le=1000)] = 2
    start_timeout: Duration = 900.0
    iteration_timeout: Duration = 300.0
    expect: Expect | None = None

    @property
    def identity(self) -> dict[str, JsonValue]:
        """What of it decides what is measured; the number that is chosen within bounds is part of no cell."""
        chosen = {"choose": self.choose.model_dump()} if self.choose else {}
        return {"warmup_iterations": self.warmup_iterations, "iterations": self.iterations, **chosen}


class Clocks(Strict):
    """``observe`` records the clocks and needs no rights, ``lock`` holds them while the trials of a cell run.

    Args:
        mode: What is done.
        sm_mhz: The SM clock to hold; choose one that the GPU keeps under full load.
        memory_mhz: The memory clock to hold, where that is wanted and the GPU can (Ampere and later).
    """

    mode: Literal["observe", "lock"] = "observe"
    sm_mhz: Positive | None = None
    memory_mhz: Positive | None = None

    @model_validator(mode="after")
    def _mode_and_clocks(self) -> Clocks:
        if self.mode == "lock" and self.sm_mhz is None:
            raise ValueError("mode: lock needs sm_mhz, the SM clock to hold, like {mode: lock, sm_mhz: 1500}")
        if self.mode == "observe" and (self.sm_mhz is not None or self.memory_mhz is not None):
            raise ValueError("sm_mhz and memory_mhz belong to mode: lock")
        return self


class Scenario(Strict):
    """One scenario file.

    Args:
        version: Version of this format, written ``schema: 1``.
        name: Lower case, digits, dots, dashes; names the scenario in reports.
        description: For people.
        engine: The engine under test.
        workload: What it decodes: a batch, or with ``driver: server`` a load.
        measure: How it is measured.
        clocks: What is done about clocks.
        gates: What can block; margins are always written out.
        kernels: What a decode step runs: traced trials and the envelope; without it nothing is traced.
        counters: Which launches of a decode step ncu counts: the shortest run of launches that holds all of these.
            Needs a ``kernels:`` block, whose traces say what there is.
        counted: How counted trials are taken.
        calls: How what the host calls in a decode step is counted; without it nothing is.
        drift: By metric how much slower it may get within some days, beside an anchor; for ``perfgate baseline drift``.
        matrix: Values of workload keys or engine arguments; each combination is a cell.
    """

    version: Annotated[
        Literal[1],
        BeforeValidator(whole_number),
        Field(alias="schema", examples=[1], description="Version of this format."),
    ]
    name: Annotated[Name, Field(examples=["llama-8b-decode"])]
    description: str = ""
    engine: Annotated[Engine, Field(examples=[{"model": {"config": "models/llama-8b"}}])]
    workload: Annotated[AnyWorkload, Field(examples=[{"batch": 8, "input_tokens": 512, "output_tokens": 128}])]
    measure: Measure = Measure()
    clocks: Clocks = Clocks()
    gates: Annotated[
        tuple[Gate, ...],
        Field(min_length=1, examples=[[{"metric": "itl_median", "ignorable": "0.1%", "must_catch": "0.5%"}]]),
        Listed,
    ]
    kernels: Annotated[Expectation | None, taken_by("traced")] = None
    counters: Annotated[tuple[Launches, ...], Listed, taken_by("counted")] = ()
    counted: CounterTrials = CounterTrials()
    calls: Annotated[CallTrials | None, taken_by("called")] = None
    drift: Annotated[dict[str, DriftBudget], Field(examples=[{"itl_median": "1% in 30 days"}])] = {}
    matrix: dict[ArgumentName, Annotated[tuple[JsonValue, ...], Field(min_length=1), Listed]] = {}

    @field_validator("gates")
    @classmethod
    def _one_gate_a_metric(cls, gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
        names = [gate.measured.name for gate in gates]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is gated twice")
        return gates

    @field_validator("drift")
    @classmethod
    def _metrics_that_drift(cls, drift: dict[str, Budget]) -> dict[str, Budget]:
        metrics = [name for name, metric in METRICS.items() if not metric.signed]
        for name in drift:
            if name not in metrics:
                raise ValueError(f"{name}: expected one of {', '.join(metrics)}{did_you_mean(name, metrics)}")
        return drift

    @field_validator("matrix")
    @classmethod
    def _matrix_values(cls, matrix: dict[str, tuple[JsonValue, ...]]) -> dict[str, tuple[JsonValue, ...]]:
        for key, values in matrix.items():
            if key in MATRIX_WORKLOAD_KEYS and not all(type(v) is int and 1 <= v <= LARGEST for v in values):
                raise ValueError(f"{key} needs whole numbers from 1 to {LARGEST}")
            if len({json.dumps(v, sort_keys=True) for v in values}) < len(values):
                raise ValueError(f"{key} has the same value twice")
        cells = math.prod(len(values) for values in matrix.values())
        if cells > MAX_CELLS:
            raise ValueError(f"makes {cells} cells, a scenario has at most {MAX_CELLS}")
        return matrix

    @model_validator(mode="after")
    def _driver_fits(self) -> Scenario:
        profiled = {"kernels": self.kernels, "counters": self.counters, "calls": self.calls}
        check_work(self.engine.driver, self.workload, self.gates).check(
            self.gates, self.matrix, self.measure.warmup_iterations, profiled
        )
        return self

    @property
    def work(self) -> Work:
        """What its engines are given, with what depends on their driver."""
        return work_of(self.engine.driver)(self.workload)

    @model_validator(mode="after")
    def _named_folder_is_there(self) -> Scenario:
        given: dict[FieldPath, JsonValue] = {("engine", "args", key): value for key, value in self.engine.args.items()}
        given |= {("matrix", key, n): value for key, values in self.matrix.items() for n, value in enumerate(values)}
        for path, value in given.items():
            if text := no_folder(self.engine.model, value):
                raise FieldError(path, text)
        return self

    def _sizes(self, key: str) -> list[int]:
        """What a number of the batch is in the cells."""
        return [size for size in self.matrix.get(key, [getattr(self.workload, key)]) if isinstance(size, int)]

    @model_validator(mode="after")
    def _images_fit(self) -> Scenario:
        if images := images_of(self.workload):
            check_images(images, self.gates, self._sizes("batch"), self._sizes("input_tokens"))
        return self

    @model_validator(mode="after")
    def _gates_have_values(self) -> Scenario:
        if not isinstance(self.workload, Workload):
            return self
        shortest = min(self._sizes("output_tokens"))
        short = shortest < MIN_DECODE_TOKENS
        for number, gate in enumerate(self.gates):
            at = ("gates", number)
            if short and gate.measured.decode in ("mean", "steps"):
                raise FieldError(at, f"{gate.metric} needs output_tokens of at least {MIN_DECODE_TOKENS}")
            kind = TRIAL_KINDS[known(gate.measured.kind)]
            if kind.name == "traced" and (lacking := not_traced(self.kernels)):
                raise FieldError(at, f"{gate.metric} is read from traced trials: {lacking}")
            if kind.block and not getattr(self, kind.block):
                raise FieldError(at, f"{gate.metric} is read from {kind.name} trials: {kind.declare}")
        latest = shortest - STEPS_BEHIND
        if self.counted.step is not None and self.counted.step > latest:
            raise FieldError(("counted", "step"), "leaves too few decode steps behind it: at most "
                                                  f"output_tokens - {STEPS_BEHIND} = {latest}")  # fmt: skip
        if self.counters and (lacking := not_traced(self.kernels)):
            raise FieldError(("counters",), f"chooses among the launches that traced trials show: {lacking}")
        return self

    @model_validator(mode="after")
    def _roles_of_gates_exist(self) -> Scenario:
        declared = self.kernels.roles if self.kernels else {}
        roles = [*dict.fromkeys((*declared, *ROLES, UNLISTED))]
        named = [(("gates", number, "role"), gate.role) for number, gate in enumerate(self.gates)]
        named += [(("counters", number, "role"), entry.role) for number, entry in enumerate(self.counters)]
        for path, role in named:
            if role is not None and role not in roles:
                raise FieldError(path, f"expected one of {', '.join(roles)}{did_you_mean(role, roles)}")
        for number, gate in enumerate(self.gates):
            held = [
                entry
                for entry in self.counters
                if entry.role in (None, gate.role) and entry.place in (None, gate.place)
            ]
            if gate.measured.kind == "counted" and not held:
                text = f"no entry of counters: counts {gate.role} {gate.place or ''}".rstrip()
                raise FieldError(("gates", number), text)
        return self


@cache
def _model_of(driver: str) -> type[Scenario]:
    """Scenarios of one driver: read as such, what is wrong in a workload is told of what it is meant to be."""
    work = work_of(driver)
    declared: Any = Annotated[work.model, Field(examples=[work.example])]
    return create_model("Scenario", __base__=Scenario, workload=(declared, ...))


@dataclass(frozen=True)
class LoadedScenario(Document):
    """A scenario with the document that declares it; a run folder keeps its text.

    Args:
        scenario: The declaration.
    """

    scenario: Scenario


def load(file: Path) -> LoadedScenario:
    """Read one scenario file.

    Raises:
        ScenarioError: With every problem found, in file order.
    """
    return loads(read_text(file, "scenario"), file)


def loads(text: str, file: Path) -> LoadedScenario:
    """Read a scenario from text; ``file`` names it in errors and anchors its relative paths.

    Raises:
        ScenarioError: With every problem found, in file order.
    """
    loaded = parse(text, file)
    _check_paths(loaded)
    return loaded


def parse(text: str, file: Path) -> LoadedScenario:
    """As :func:`loads`, but the model need not be there: for a scenario that was measured elsewhere.

    Raises:
        ScenarioError: With every problem found, in file order.
    """
    document = read_document(text, file)
    model = _model_of(declared_driver(document.content))
    try:
        read = model.model_validate(document.content, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ScenarioError(document.problems(error, model)) from error
    scenario = Scenario.model_construct(read.model_fields_set, **dict(read))
    return LoadedScenario(**vars(document), scenario=scenario)


def dump(scenario: Scenario) -> str:
    """The scenario as YAML with every default filled in; it loads to the same scenario."""
    return write_document(scenario.model_dump(mode="json", by_alias=True, exclude_none=True))


def with_kernels(loaded: LoadedScenario, expected: Expectation) -> str:
    """The scenario's text with this ``kernels:`` block in place of its own; all other text stays as it is.

    Raises:
        ScenarioError: The file cannot be edited in place, or the block makes no valid scenario.
    """
    block = expected.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    text = replace_block(loaded.text, loaded.file, "kernels", block)
    loads(text, loaded.file)
    return text


def model_folder(loaded: LoadedScenario) -> Path | None:
    """The folder of the model, absolute; ``None`` for a model on the hub."""
    model = loaded.scenario.engine.model
    local = model.config if model.config is not None else model.path
    return None if local is None else (loaded.file.parent / local).resolve()


def json_schema() -> dict[str, Any]:
    """The scenario format as JSON Schema draft-07, the newest that YAML editors read."""
    schema = describe_fields(draft_07(Scenario))
    durations = {Measure: {"start_timeout", "iteration_timeout"}, CounterTrials: {"limit"}, CallTrials: {"ignorable"}}
    for model, names in durations.items():
        for name, default in model().model_dump(mode="json", include=names).items():
            schema["definitions"][model.__name__]["properties"][name]["default"] = default
    schema["title"] = "perfgate scenario"
    return schema


def _check_paths(loaded: LoadedScenario) -> None:
    """What it names is in the repository: the model's folder, with a ``config.json``, and a trace that can be read."""
    problems = []
    field = "config" if loaded.scenario.engine.model.config is not None else "path"
    looks = {("engine", "model", field): _folder_problem, loaded.scenario.work.file_path: _file_problem}
    for path, look in looks.items():
        try:
            text = look(loaded)
        except (OSError, RuntimeError, ValueError) as error:  # too long, no permission; links in a circle; a NUL
            text = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if text:
            problems.append(loaded.problem(path, text))
    if problems:
        raise ScenarioError(tuple(problems))


def _folder_problem(loaded: LoadedScenario) -> str:
    folder = model_folder(loaded)
    return "" if folder is None else model_problem(folder, repository_root(loaded.file.parent.resolve()))


def _file_problem(loaded: LoadedScenario) -> str:
    file, root = loaded.scenario.work.file(loaded.file), repository_root(loaded.file.parent.resolve())
    return "" if file is None else loaded.scenario.work.file_problem(file, root)
