"""Plants: what makes a build worse on purpose, and what the gate must say of it.

A plant is a folder with a ``plant.yaml``. Beside it are a module of the plant's name and its ``dist-info``, which make
it a vLLM plugin; a plant that is only engine arguments or environment variables has none.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, field_validator, model_validator

from perfgate.capture.engine import gpus_of
from perfgate.errors import Problem, ScenarioError, UsageError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.catalogue import metric_names, split_name
from perfgate.models import CurrentCode, FieldError, Listed, Positive, Strict
from perfgate.reasons import REASONS
from perfgate.scenario.fields import ArgumentName, Expression, Name, VariableName, Variables, whole_number
from perfgate.scenario.subject import Subject
from perfgate.scenario.yaml_document import did_you_mean, read_document, read_text, whole_file_error

FILE = "plant.yaml"
OWN = "PERFGATE_PLANT_"  # what variables that a plant reads itself begin with; others are the engine's
PLUGINS = "vllm.general_plugins"  # the group of entry points that vLLM calls in each of its processes
WHOLE = re.compile(r"[1-9][0-9]{0,17}")  # a size that is a number
Device = Literal["cpu", "cuda"]
Family = Literal[
    "device-compute", "memory-traffic", "launch-and-graph", "host-work", "communication", "cache", "scheduler",
    "sampling", "start-up", "memory-use", "output-change",
]  # fmt: skip
Text = Annotated[str, Field(min_length=1)]


class Recreated(Strict):
    """A regression that happened."""

    # Where it was reported, `owner/name#number`
    issue: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#\d+$")]
    mechanism: Text  # what caused it, and how much of that the plant does


class Dial(Strict):
    """What sets a plant's size."""

    variable: VariableName | None = None  # an environment variable of the plant; or
    argument: ArgumentName | None = None  # an engine argument, whose sizes are written as JSON
    unit: Text  # of what the sizes are
    # By device, the first one the default
    sizes: dict[Device, Annotated[tuple[Text, ...], Field(min_length=1), Listed]]

    @model_validator(mode="after")
    def _one_of_both(self) -> Dial:
        if (self.variable is None) == (self.argument is None):
            raise ValueError("expected either a variable or an argument")
        for device, sizes in self.sizes.items():
            for number, size in enumerate(sizes if self.argument else ()):
                try:
                    _value(size)
                except ValueError as error:
                    raise FieldError(("sizes", device, number), f"invalid JSON: {error}") from error
        return self

    def read(self, text: str, device: Device) -> tuple[str, ...]:
        """Sizes that are written with commas between them; a comma inside a JSON value is its own.

        Raises:
            ValueError: One is not JSON for an engine argument, or not a whole number where the catalogue's are.
        """
        if self.argument is not None:
            return tuple(map(json.dumps, _value(f"[{text}]")))
        sizes = tuple(filter(None, text.split(",")))
        if all(map(WHOLE.fullmatch, self.sizes.get(device, ()))) and not all(map(WHOLE.fullmatch, sizes)):
            raise ValueError("expected whole numbers from 1")
        return sizes


def _value(text: str) -> Any:
    """A JSON value; what only Python calls JSON is none."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    return json.loads(text, parse_constant=refuse)


class Expected(Strict):
    """What the gate must say of a plant."""

    metric: str = "*"  # the gate that decides: a metric, or a pattern like `kernel_time_per_step[*]`
    # `regressed`; `pass` with a caution; `not-measured` for a reason
    verdict: Literal["regressed", "pass", "not-measured"] = "regressed"
    caution: CurrentCode | None = None  # the code of the caution that a `pass` must carry
    reason: CurrentCode | None = None  # the reason code of `not-measured`
    # By device, the microseconds that one unit of the dial adds to a decode step, where that is so by construction
    step_us_per_unit: dict[Device, Annotated[float, Field(gt=0)]] = {}
    # By device, an expression, upper or lower case, that a sentence about the cause must match
    cause: dict[Device, Expression] = {}

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, metric: str) -> str:
        names = metric_names()
        if not fnmatch.filter(names, split_name(metric)[0]):
            raise ValueError(f"expected one of {', '.join(names)}{did_you_mean(metric, names)}")
        return metric

    @model_validator(mode="after")
    def _code_of_the_verdict(self) -> Expected:
        for field, verdict in (("caution", "pass"), ("reason", "not-measured")):
            code = getattr(self, field)
            if (code is not None) != (self.verdict == verdict):
                raise ValueError(f"verdict: {verdict} and {field}: go together")
            if code is not None and code not in REASONS:
                raise FieldError((field,), f"no such reason code{did_you_mean(code, REASONS)}")
        return self

    def gates(self, gated: Iterable[str]) -> tuple[str, ...]:
        """Those of the gated metrics that decide."""
        # Only * is a wildcard: brackets are part of a metric's name.
        pattern = self.metric.replace("[", "[[]")
        return tuple(name for name in gated if fnmatch.fnmatchcase(name, pattern))


class PlantFile(Strict):
    """What ``plant.yaml`` says."""

    # Version of this format, written `schema: 1`
    version: Annotated[Literal[1], BeforeValidator(whole_number), Field(alias="schema", examples=[1])]
    name: Name  # the folder's
    family: Family  # what kind of thing gets worse
    what: Text  # what the plant does, in one sentence
    recreates: Annotated[tuple[Recreated, ...], Listed] = ()  # the regressions that it does again
    runs_on: Annotated[tuple[Device, ...], Field(min_length=1), Listed]  # devices on which it does what it says
    gpus: Positive = 1  # how many its engine arguments take
    env: Variables = {}  # environment variables of the head
    args: dict[ArgumentName, JsonValue] = {}  # engine arguments of the head
    # Engine arguments of both sides, where the plant needs a feature switched on
    base_args: dict[ArgumentName, JsonValue] = {}
    dial: Dial | None = None  # what sets the plant's size
    expect: Expected  # what the gate must say

    @model_validator(mode="after")
    def _devices_agree(self) -> PlantFile:
        if self.gpus != (needed := gpus_of({**self.base_args, **self.args})):
            raise FieldError(("gpus",), f"its engine arguments take {needed}")
        if self.dial and {*self.dial.sizes} != {*self.runs_on}:
            raise FieldError(("dial", "sizes"), f"expected sizes for {' and '.join(self.runs_on)}")
        for field, devices in (("cause", self.expect.cause), ("step_us_per_unit", self.expect.step_us_per_unit)):
            if strange := {*devices} - {*self.runs_on}:
                raise FieldError(("expect", field, min(strange)), "the plant does not run there")
        for device in self.expect.step_us_per_unit:
            if not self.dial or not all(map(WHOLE.fullmatch, self.dial.sizes[device])):
                raise FieldError(("expect", "step_us_per_unit", device), "needs a dial whose sizes are whole numbers")
        return self


class Plant(PlantFile):
    """A plant as it was found."""

    # Folders to put on the module path of the head: its own, where it is a plugin
    path: Annotated[tuple[str, ...], Listed] = ()
    digest: str = ""  # SHA-256 of its module; empty where it has none, or that is not known

    @property
    def changed(self) -> bool:
        """Whether its module is not the one that was found."""
        return bool(self.digest) and any(_digest(Path(folder), self.name) != self.digest for folder in self.path)

    def sizes(self, device: Device) -> tuple[str, ...]:
        """Sizes of the dial on a device, the default first; empty where there is no dial, or the plant does not run."""
        return self.dial.sizes.get(device, ()) if self.dial else ()

    def chosen(self, asked: Sequence[str], device: Device) -> tuple[str | None, ...]:
        """The sizes that texts like ``100,200`` ask for; the default of the device where none does.

        Raises:
            UsageError: The plant cannot have such a size.
        """
        texts = [text for text in asked if text]
        if texts and self.dial is None:
            raise UsageError(f"plant {self.name}: has no dial")
        try:
            sizes = [size for text in texts if self.dial for size in self.dial.read(text, device)]
        except ValueError as error:
            raise UsageError(f"plant {self.name}: size {','.join(texts)}: {error}") from error
        return (*sizes,) or self.sizes(device)[:1] or (None,)

    def step_s(self, device: Device, size: str | None) -> float | None:
        """Seconds that a size adds to a decode step by construction; ``None`` where only a measurement tells."""
        unit_us = self.expect.step_us_per_unit.get(device)
        if unit_us is None or size is None or not WHOLE.fullmatch(size):
            return None
        return int(size) * unit_us / 1e6

    def base(self, build: Subject) -> Subject:
        """The side without the plant: the build with the feature switched on that the plant is about."""
        return build.model_copy(update={"args": {**build.args, **self.base_args}})

    def subject(self, build: Subject, size: str | None) -> Subject:
        """The side with the plant, as large as the dial is set.

        Raises:
            UsageError: A size without a dial, or a dial without a size.
        """
        if (size is None) != (self.dial is None):
            raise UsageError(f"plant {self.name}: {'has no dial' if size else 'its dial needs a size'}")
        env, args = {**build.env, **self.env}, {**build.args, **self.base_args, **self.args}
        if size is not None and self.dial and self.dial.variable:
            env[self.dial.variable] = size
        if size is not None and self.dial and self.dial.argument:
            args[self.dial.argument] = _value(size)
        return build.model_copy(update={"path": (*self.path, *build.path), "env": env, "args": args})


def load_plant(folder: Path) -> Plant:
    """The plant of a folder.

    Raises:
        ScenarioError: ``plant.yaml`` is wrong, with every problem found, or the folder is not a plugin that it needs.
    """
    file = folder / FILE
    document = read_document(read_text(file, "plant"), file)
    try:
        declared = PlantFile.model_validate(document.content, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ScenarioError(document.problems(error, PlantFile)) from error
    if declared.name != folder.name:
        text = f"must be the name of its folder, {folder.name}, found {declared.name!r}"
        raise ScenarioError((Problem(str(file), *document.marks["name",], "name", text),))
    fields: dict[str, Any] = {name: getattr(declared, name) for name in PlantFile.model_fields}
    return Plant(**fields, path=_plugin(declared, folder), digest=_digest(folder, declared.name))


def _digest(folder: Path, name: str) -> str:
    module = folder / f"{name}.py"
    return sha256_hex(module.read_bytes()) if module.is_file() else ""


def _plugin(declared: PlantFile, folder: Path) -> tuple[str, ...]:
    """The folder where it is a plugin; a plant is never one that vLLM does not see."""
    name, dial = declared.name, declared.dial
    if (folder / f"{name}.py").is_file():
        entries = [entry for each in distributions(path=[str(folder)]) for entry in each.entry_points]
        if [(e.name, e.value) for e in entries if e.group == PLUGINS] == [(name, f"{name}:register")]:
            return (str(folder.absolute()),)
        text = f"{name}.py needs a dist-info with one entry point of {PLUGINS}, {name} = {name}:register"
        raise whole_file_error(folder / FILE, text)
    if dial and dial.variable and dial.variable.startswith(OWN):
        raise whole_file_error(folder / FILE, f"nothing reads {dial.variable}: no {name}.py beside it")
    if not declared.env and not declared.args and not dial:
        raise whole_file_error(folder / FILE, f"does nothing: no {name}.py beside it, no args, env or dial")
    return ()


def load_catalogue(folder: Path, names: Iterable[str] = ()) -> tuple[Plant, ...]:
    """The plants in a folder, by name.

    Each folder in it is a plant. Where names are given only these, in their order.

    Raises:
        UsageError: There is no such folder, it holds no plant, or none of a name.
        ScenarioError: Plants are wrong, with every problem of each.
    """
    try:
        entries = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] not in "._")
    except OSError as error:
        raise UsageError(f"no catalogue of plants: {error.strerror}", where=str(folder)) from error
    chosen = [*dict.fromkeys(names)] or entries
    for name in chosen:
        if name not in entries:
            raise UsageError(f"no plant {name!r}{did_you_mean(name, entries)}", where=str(folder),
                             remedy=f"Plants there: {', '.join(entries) or 'none'}.")  # fmt: skip
    if not chosen:
        raise UsageError("holds no plant", where=str(folder))
    plants: list[Plant] = []
    problems: list[Problem] = []
    for name in chosen:
        try:
            plants.append(load_plant(folder / name))
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(tuple(problems))
    return tuple(plants)
