"""Scenarios: what the user declares, as frozen models, and the YAML reader that points at what is wrong.

Loading never executes anything: YAML 1.2 by ruamel's safe loader, no aliases, no environment expansion, paths confined
to the repository. Every problem is reported as ``file:line:column: field: text``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from perfgate.document import (
    describe_fields,
    did_you_mean,
    dotted,
    read_document,
    to_draft_07,
    whole_file_error,
    write_document,
)
from perfgate.errors import Problem, ScenarioError
from perfgate.fields import (
    LARGEST,
    QUANTITY,
    ArgumentName,
    Duration,
    Listed,
    Name,
    Percent,
    Positive,
    Variables,
    Weight,
    whole_number,
)
from perfgate.metrics import METRICS, PLANNED, format_percent, parse_quantity
from perfgate.stats import DEFAULT_SCHEDULE, FIRST_BLOCKING_PAIRS, Schedule

MAX_BYTES = 256 * 1024
"""A scenario is a page of text; anything larger is something else."""

MATRIX_WORKLOAD_KEYS = ("batch", "input_tokens", "output_tokens")
MAX_CELLS = 256
"""A matrix multiplies; more cells than this are a slip."""
MIN_DECODE_TOKENS = 3
"""The first token ends prefill, the second a gap that touches it, the third the first full decode step."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Model(_Strict):
    """Which weights: exactly one of ``config``, ``path``, ``hub``.

    Args:
        config: Folder with a ``config.json``, relative to the scenario; weights are dummies.
        path: Folder with real weights, relative to the scenario.
        hub: Name on the model hub; needs ``revision``.
        revision: Full commit of the hub's model, so that the cell stays the same.
    """

    config: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if sum(source is not None for source in (self.config, self.path, self.hub)) != 1:
            raise ValueError("expected exactly one of config, path, hub")
        if (self.hub is None) != (self.revision is None):
            raise ValueError("hub and revision go together")
        return self


class Engine(_Strict):
    """The engine under test.

    Args:
        driver: ``vllm`` drives the engine loop in the worker's own process.
        model: The weights.
        args: vLLM engine arguments, passed as they are.
        env: Environment variables for the engine of both sides.
    """

    driver: Literal["vllm"] = "vllm"
    model: Model
    args: dict[ArgumentName, JsonValue] = {}
    env: Variables = {}


class Workload(_Strict):
    """A decode workload: ``batch`` requests submitted at once, run to a fixed length at temperature 0."""

    batch: Positive
    input_tokens: Positive
    output_tokens: Positive
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Spend(_Strict):
    """How the error rates are spent over the looks; each list has an entry a look and sums to at most 0.8."""

    block: Annotated[tuple[Weight, ...], Listed]
    pass_: Annotated[tuple[Weight, ...], Field(alias="pass"), Listed]


class Expect(_Strict):
    """What the author of a scenario has seen of it, for the price that ``perfgate check`` names before a first run.

    Args:
        trial_s: Seconds that a trial takes.
        pair_sd: Standard deviation of the pairs' log ratios, for every gate or by metric.
    """

    trial_s: Annotated[float, Field(gt=0, le=LARGEST)]
    pair_sd: Percent | dict[str, Percent]

    def sd_of(self, metric: str) -> float | None:
        """The spread expected of a metric; ``None`` where none is named."""
        return self.pair_sd.get(metric) if isinstance(self.pair_sd, dict) else self.pair_sd


class Measure(_Strict):
    """The measurement plan of one cell.

    Args:
        warmup_iterations: Iterations run and not counted in each trial.
        iterations: Iterations counted in each trial.
        looks: Numbers of pairs at which a decision is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 4, 6, 8, 12.
        max_dropped_pairs: Pairs that may fail and be replaced before the cell counts as not measured.
        start_timeout: Limit for the start of an engine.
        iteration_timeout: Limit for one iteration.
        expect: Seconds a trial and spread of the pairs, for the price before the first run; no part of the cell.
    """

    warmup_iterations: Annotated[int, Field(ge=0, le=1000)] = 2
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 20
    looks: Annotated[tuple[Annotated[int, Field(ge=2, le=1000)], ...], Field(min_length=1), Listed] = (
        DEFAULT_SCHEDULE.looks
    )
    spend: Spend | None = None
    max_dropped_pairs: Annotated[int, Field(ge=0, le=1000)] = 2
    start_timeout: Duration = 900.0
    iteration_timeout: Duration = 300.0
    expect: Expect | None = None

    @field_validator("looks")
    @classmethod
    def _looks_increase(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if list(looks) != sorted(set(looks)):
            raise ValueError("looks must increase")
        return looks

    @model_validator(mode="after")
    def _looks_have_weights(self) -> Measure:
        if self.spend is None:
            if self.looks != DEFAULT_SCHEDULE.looks[: len(self.looks)]:
                raise ValueError("looks other than [4, 6, 8, 12] or a beginning of it need their own spend")
            return self
        for name, weights in (("block", self.spend.block), ("pass", self.spend.pass_)):
            if len(weights) != len(self.looks):
                raise ValueError(f"spend.{name} needs one weight a look: {len(self.looks)}, not {len(weights)}")
            if sum(weights) > 0.8 + 1e-9:
                raise ValueError(f"spend.{name} sums to {sum(weights):g}, at most 0.8 may be spent: the rest is for "
                                 "further looks")  # fmt: skip
        for look, weight in zip(self.looks, self.spend.block, strict=True):
            if look < FIRST_BLOCKING_PAIRS and weight > 0:
                raise ValueError(f"spend.block must be 0 at {look} pairs: no look blocks before {FIRST_BLOCKING_PAIRS}")
        return self

    @property
    def schedule(self) -> Schedule:
        """The looks with their weights."""
        if self.spend is not None:
            return Schedule(self.looks, self.spend.block, self.spend.pass_)
        declared = len(self.looks)
        return Schedule(self.looks, DEFAULT_SCHEDULE.block[:declared], DEFAULT_SCHEDULE.pass_[:declared])


class Clocks(_Strict):
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


class Gate(_Strict):
    """One metric that can block.

    Args:
        metric: What is judged, one of the metrics that perfgate knows.
        ignorable: A slowdown up to this is no regression.
        must_catch: A slowdown from this on must not pass.
        floor: Absolute change in the metric's unit below which nothing is a regression, like ``1ms``.
    """

    metric: Annotated[str, WithJsonSchema({"type": "string", "enum": list(METRICS)})]
    ignorable: Percent
    must_catch: Percent
    floor: Annotated[str, WithJsonSchema({"type": "string", "pattern": QUANTITY, "examples": ["1ms"]})] | None = None

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        if metric in PLANNED:
            raise ValueError(f"{metric} is not supported by this version: it needs {PLANNED[metric]}")
        if metric not in METRICS:
            raise ValueError(f"expected one of {', '.join(METRICS)}{did_you_mean(metric, METRICS)}")
        return metric

    @field_validator("must_catch")
    @classmethod
    def _margins_fit(cls, must_catch: float, info: ValidationInfo) -> float:
        ignorable, metric = info.data.get("ignorable"), info.data.get("metric")
        if ignorable is not None and not ignorable < must_catch:
            raise ValueError(f"must be above ignorable ({format_percent(ignorable)})")
        if metric is not None and METRICS[metric].better == "higher" and must_catch >= 1:
            raise ValueError("must be below 100% for a metric where higher is better")
        return must_catch

    @field_validator("floor")
    @classmethod
    def _unit_fits(cls, floor: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        unit = parse_quantity(floor)[1] if floor is not None else None
        if unit is not None and metric is not None and unit != METRICS[metric].unit:
            raise ValueError(f"expected a unit of {metric} ({METRICS[metric].unit})")
        return floor

    @property
    def floor_value(self) -> float:
        """The floor in the metric's base unit; 0 without one."""
        return parse_quantity(self.floor)[0] if self.floor else 0.0


def _refuse_block(value: Any) -> None:
    if value is not None:
        raise ValueError("this block is not supported by this version; take it out until it is")


Refused = Annotated[None, BeforeValidator(_refuse_block)]


class Scenario(_Strict):
    """One scenario file.

    Args:
        version: Version of this format, written ``schema: 1``.
        name: Lower case, digits, dots, dashes; names the scenario in reports.
        description: For people.
        engine: The engine under test.
        workload: What it decodes.
        measure: How it is measured.
        clocks: What is done about clocks.
        gates: What can block; margins are always written out.
        kernels: Envelope of the decode step (not in this version).
        counters: Hardware counters (not in this version).
        matrix: Values of workload keys or engine arguments; each combination is a cell.
    """

    version: Annotated[Literal[1], BeforeValidator(whole_number), Field(alias="schema")]
    name: Name
    description: str = ""
    engine: Engine
    workload: Workload
    measure: Measure = Measure()
    clocks: Clocks = Clocks()
    gates: Annotated[tuple[Gate, ...], Field(min_length=1), Listed]
    kernels: Refused = None
    counters: Refused = None
    matrix: dict[ArgumentName, Annotated[tuple[JsonValue, ...], Field(min_length=1), Listed]] = {}

    @field_validator("gates")
    @classmethod
    def _one_gate_a_metric(cls, gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
        seen: set[str] = set()
        for gate in gates:
            if gate.metric in seen:
                raise ValueError(f"{gate.metric} is gated twice")
            seen.add(gate.metric)
        return gates

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
    def _gates_have_values(self) -> Scenario:
        lengths = self.matrix.get("output_tokens", (self.workload.output_tokens,))
        short = any(isinstance(length, int) and length < MIN_DECODE_TOKENS for length in lengths)
        for gate in self.gates:
            if short and METRICS[gate.metric].needs_decode:
                raise ValueError(f"{gate.metric} needs output_tokens of at least {MIN_DECODE_TOKENS}")
        return self


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario with the place of each of its fields.

    Args:
        scenario: The declaration.
        file: Path as the user gave it.
        text: The file's content, kept verbatim in the run folder.
        marks: Place of each field by its path: (line, column), from 1.
    """

    scenario: Scenario
    file: Path
    text: str
    marks: Mapping[tuple[str | int, ...], tuple[int, int]]

    def where(self, *path: str | int) -> str:
        """``file:line`` of a field, or of the nearest enclosing one that the file spells out."""
        while path and path not in self.marks:
            path = path[:-1]
        return f"{self.file}:{self.marks.get(path, (1, 1))[0]}"


def load(file: Path) -> LoadedScenario:
    """Read one scenario file.

    Raises:
        ScenarioError: With every problem found, in file order.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise whole_file_error(file, f"is larger than {MAX_BYTES} bytes, which no scenario is")
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise whole_file_error(file, "no such file") from None
    except IsADirectoryError:
        raise whole_file_error(file, "is a folder, expected a scenario file") from None
    except UnicodeDecodeError:
        raise whole_file_error(file, "is no UTF-8 text") from None
    except OSError as error:
        raise whole_file_error(file, f"cannot be read: {error.strerror}") from error
    return loads(text, file)


def loads(text: str, file: Path) -> LoadedScenario:
    """Read a scenario from text; ``file`` names it in errors and anchors its relative paths.

    Raises:
        ScenarioError: With every problem found, in file order.
    """
    document = read_document(text, file)
    try:
        scenario = Scenario.model_validate(document.content, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ScenarioError(document.problems(error, Scenario)) from error
    loaded = LoadedScenario(scenario, file, text, document.marks)
    _check_paths(loaded)
    return loaded


def dump(scenario: Scenario) -> str:
    """The scenario as YAML with every default filled in; it loads to the same scenario."""
    return write_document(scenario.model_dump(mode="json", by_alias=True, exclude_none=True))


def model_folder(loaded: LoadedScenario) -> Path | None:
    """The folder of the model, absolute; ``None`` for a model on the hub."""
    model = loaded.scenario.engine.model
    local = model.config if model.config is not None else model.path
    return None if local is None else (loaded.file.parent / local).resolve()


def json_schema() -> dict[str, Any]:
    """The scenario format as JSON Schema draft-07, the newest that YAML editors read."""
    schema = describe_fields(to_draft_07(Scenario.model_json_schema(by_alias=True)))
    for name in ("kernels", "counters"):
        schema["properties"][name] = {"type": "null", "description": "not supported by this version"}
    for name, default in Measure().model_dump(mode="json", include={"start_timeout", "iteration_timeout"}).items():
        schema["definitions"]["Measure"]["properties"][name]["default"] = default
    schema["title"] = "perfgate scenario"
    return schema


def repository_root(folder: Path) -> Path:
    """The nearest folder from ``folder`` up that holds ``.git``, ``perfgate.toml`` or ``pyproject.toml``."""
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in (".git", "perfgate.toml", "pyproject.toml")):
            return candidate
    return folder


def _check_paths(loaded: LoadedScenario) -> None:
    """The model's folder lies in the repository and has a ``config.json``."""
    model = loaded.scenario.engine.model
    if model.hub is not None:
        return
    field = ("engine", "model", "config" if model.config is not None else "path")
    try:
        text = _folder_problem(loaded)
    except (OSError, RuntimeError, ValueError) as error:  # too long, no permission; links in a circle; a NUL
        text = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if text:
        raise ScenarioError((Problem(str(loaded.file), *loaded.marks[field], dotted(field), text),))


def _folder_problem(loaded: LoadedScenario) -> str:
    folder = model_folder(loaded)
    root = repository_root(loaded.file.parent.resolve())
    if folder is None:
        return ""
    if not folder.is_relative_to(root):
        return "leads out of the repository"
    config = folder / "config.json"
    if not config.is_file():
        return f"has no config.json: {folder.relative_to(root)}"
    return "" if config.resolve().is_relative_to(root) else "has a config.json that leads out of the repository"
