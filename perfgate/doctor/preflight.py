"""What can be told of a scenario before an engine starts: arguments that a build does not take, sizes that do not fit.

Names and values are held against the build's own declaration of its arguments, see
:mod:`perfgate.doctor.engine_arguments`; their relations are arithmetic and need no build. What cannot be judged so is
left to the engine.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.capture.engine import allowed_environment, engine_settings, subject_environment
from perfgate.doctor.accepted_values import EngineArguments
from perfgate.doctor.vllm_source import Located, arguments_of, locate, option_of, uninstalled
from perfgate.errors import Problem, ScenarioError, UsageError
from perfgate.machine.json_text import RECORD
from perfgate.metrics.model_shape import text_part
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.models import FieldPath, Strict
from perfgate.scenario.cache_size import PINNED, cannot_hold
from perfgate.scenario.declaration import LoadedScenario, model_folder
from perfgate.scenario.drivers import DRIVERS
from perfgate.scenario.plan import points
from perfgate.scenario.subject import Builds, Subject, runs_already
from perfgate.scenario.subject_words import replaced_path
from perfgate.scenario.work import work_of
from perfgate.scenario.workload import MATRIX_WORKLOAD_KEYS, Workload, images_of, no_folder
from perfgate.scenario.yaml_document import did_you_mean

_Asked = dict[str, Located | str]
NOBODY_ASKED = "engine arguments are not checked: name a build with --base python=..., or as [subjects.base]"
LEAST_CACHE_BYTES = 64 * 1024**2
UNKNOWN_CACHE_BYTES = 1024**3
CACHE_ARGS = (PINNED, "num_gpu_blocks_override", "gpu_memory_utilization")
CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
THREADS_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"


IMAGE_TOKENS = ("image_token_index", "image_token_id")
"""What configurations call the token that marks an image."""


@dataclass(frozen=True)
class Preflight:
    """What was found of scenarios that an engine may run.

    Args:
        warnings: What can run and is hardly meant, in file order.
        notes: Sides whose arguments were not checked, and why.
    """

    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    """One build under one scenario: what it is given, and what its interpreter says, as far as it was asked.

    Args:
        name: Base, head, or the name of one of several heads; ``None`` where no build is named.
        args: The build's own engine arguments.
        env: The build's own variables.
        cpu: Whether it is one for CPUs; ``None`` where that is not known.
        takes: The engine arguments that it takes, or why they are not known; empty where it was not asked.
    """

    name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: bool | None = None
    takes: EngineArguments | str = ""


@dataclass(frozen=True)
class _Cell:
    """One combination of a scenario's matrix as one side would run it, with the place of everything in it."""

    loaded: LoadedScenario
    point: Mapping[str, Any]
    side: _Side

    @property
    def workload(self) -> Strict:
        sizes = {key: value for key, value in self.point.items() if key in MATRIX_WORKLOAD_KEYS}
        return self.loaded.scenario.workload.model_copy(update=sizes)

    @property
    def args(self) -> dict[str, Any]:
        """The engine's arguments: the scenario's, the matrix's, the subject's; later ones win."""
        matrix = {key: value for key, value in self.point.items() if key not in MATRIX_WORKLOAD_KEYS}
        return {**self.loaded.scenario.engine.args, **matrix, **self.side.args}

    @property
    def variables(self) -> dict[str, str]:
        """The variables that scenario and subject give the engine."""
        return {**self.loaded.scenario.engine.env, **self.side.env}

    @property
    def on_cpu(self) -> bool:
        """Whether the build is one for CPUs; by the variables where no build could be asked."""
        if self.side.cpu is None:
            return any(name.startswith("VLLM_CPU_") for name in self.variables)
        return self.side.cpu

    def own(self, key: str, *others: str) -> str:
        """The first of several keys in a relation that the build itself sets; the first where it sets none."""
        return next((name for name in (key, *others) if name in self.side.args), key)

    def problem(self, key: str, text: str, within: Sequence[str] = (), *, at_key: bool = False) -> Problem:
        """Something wrong with a workload key or an engine argument, at the place that sets it."""
        if key not in MATRIX_WORKLOAD_KEYS and key in self.side.args:
            return Problem(option_of(self.side.name), 0, 0, ".".join(("args", key, *within)), text)
        path: FieldPath = ("workload", key) if key in MATRIX_WORKLOAD_KEYS else ("engine", "args", key)
        if key in self.point:
            number = self.loaded.scenario.matrix[key].index(self.point[key])
            path = ("matrix", key) if at_key else ("matrix", key, number)
        return self.loaded.problem((*path, *within), text, at_key=at_key)


def preflight(scenarios: Sequence[LoadedScenario], subjects: Builds, *, ask: bool = True) -> Preflight:
    """Look at what is to be run.

    Without subjects arithmetic is all there is; ``ask``: whether the builds' interpreters may be started.

    Raises:
        ScenarioError: With all that no engine would accept, or no gate could be judged by, in file order.
        UsageError: An interpreter cannot be executed, or has no vLLM.
    """
    problems, warnings = list[tuple[Problem, _Side]](), list[tuple[Problem, _Side]]()
    notes: list[str] = []
    asked: _Asked = {}
    for loaded in scenarios:
        engine = loaded.scenario.engine
        if runs_already(subjects) and not loaded.scenario.work.runs_already:
            text = "a server that runs already (url=) is measured with driver: server"
            raise ScenarioError((loaded.problem(("engine", "driver"), text),))
        asks = ask and DRIVERS[engine.driver].vllm and not engine.command  # what others take is not known
        sides = [_side(loaded, name, dict(subjects.items()), asked if asks else None) for name in subjects]
        unknown = [side for side in sides if isinstance(side.takes, str) and side.takes]
        notes += [f"{side.name}: engine arguments are not checked: {side.takes}" for side in unknown]
        notes += [] if subjects else [NOBODY_ASKED]
        for cell in (_Cell(loaded, point, side) for side in sides or [_Side()] for point in points(loaded.scenario)):
            wrong = (*_wrong_arguments(cell), *_unfit_work(cell), *_unknown_token(cell), *_too_many_figures(cell))
            problems += [(problem, cell.side) for problem in wrong]
            warnings += [(problem, cell.side) for problem in _hardly_meant(cell)]
    if problems:
        raise ScenarioError(_distinct(problems, len(subjects)))
    hints = (*_distinct(warnings, len(subjects)), *uninstalled(subjects))
    return Preflight(hints, tuple(dict.fromkeys(notes)))


def _distinct(problems: Iterable[tuple[Problem, _Side]], sides: int) -> tuple[Problem, ...]:
    """Each problem once, in file order: cells and sides share most; one that only some sides have names the first."""
    names: dict[Problem, dict[str | None, None]] = {}
    for problem, side in problems:
        names.setdefault(problem, {})[side.name] = None
    named = []
    for problem, (name, *others) in names.items():
        alone = f" ({name})" if problem.line and name and 1 + len(others) < sides else ""
        named.append(dataclasses.replace(problem, text=problem.text + alone))
    return tuple(sorted(named, key=lambda problem: (problem.line, problem.column)))


def _side(loaded: LoadedScenario, name: str, built: Mapping[str, Subject], asked: _Asked | None) -> _Side:
    """A build under the variables of a scenario; what was asked before is not asked again."""
    subject = built[name]
    if asked is None or subject.url is not None:
        return _Side(name, subject.args, subject.env)
    settings = {**allowed_environment(os.environ), **engine_settings(Path("/nonexistent"))}
    variables = subject_environment({**settings, **loaded.scenario.engine.env}, subject)
    key = json.dumps([subject.python, variables], sort_keys=True)
    if key not in asked:
        asked[key] = locate(subject, variables)
    located, source = asked[key], subject.built_from
    takes = located if isinstance(located, str) else arguments_of(subject, located)
    if isinstance(takes, str) and source is not None and not Path(source.folder, "tree").is_dir():
        takes = f"{source.name} is not built yet"
    elif isinstance(located, Located) and located.missing:
        more = replaced_path(subject, built.get("base"))
        text = f"python={subject.python} has no vllm{more and f': {more}'}"
        raise UsageError(text, where=name, code="engine-import-failed")
    return _Side(name, subject.args, subject.env, None if isinstance(located, str) else located.cpu, takes)


def _wrong_arguments(cell: _Cell) -> Iterator[Problem]:
    """Arguments that the build does not take; without a build, keys of the matrix that are misspelt workload keys."""
    for key, value in cell.side.args.items():
        if text := no_folder(cell.loaded.scenario.engine.model, value):
            yield cell.problem(key, text)
    takes = cell.side.takes
    if isinstance(takes, str):
        for key in cell.point:
            near = difflib.get_close_matches(key, MATRIX_WORKLOAD_KEYS, n=1, cutoff=0.75)
            if near and key not in MATRIX_WORKLOAD_KEYS:
                text = f"neither a key of the workload nor an argument of vLLM (did you mean {near[0]!r}?)"
                yield cell.problem(key, text, at_key=True)
        return
    for key, value in cell.args.items():
        if problem := takes.problem(key, value):
            within, text = problem
            unknown = key not in takes.accepted
            if unknown and key in cell.point and (near_key := did_you_mean(key, MATRIX_WORKLOAD_KEYS)):
                text = f"vLLM {takes.version} has no such engine argument{near_key}"
            yield cell.problem(key, text, within, at_key=unknown or text.startswith("unknown key"))


def _unfit_work(cell: _Cell) -> Iterator[Problem]:
    """Arguments and workload that do not fit each other, by those arguments alone that are given."""
    work = cell.workload
    if isinstance(work, Workload):
        yield from _wrong_sizes(cell, work)
    for path, text in cell.loaded.scenario.work.unfit(cell.args, cell.loaded.file):
        yield cell.loaded.problem(path, text)


def _wrong_sizes(cell: _Cell, work: Workload) -> Iterator[Problem]:
    """A batch that does not fit the arguments."""
    args = cell.args
    seqs, length, batched = (_whole(args, key) for key in ("max_num_seqs", "max_model_len", "max_num_batched_tokens"))
    measured = [(gate.metric, gate.measured) for gate in cell.loaded.scenario.gates]
    names = [name for name, metric in measured if metric.kind == "timed" and metric.decode == "steps"]
    alone = args.get("data_parallel_size", 1) == 1
    if seqs is not None and work.batch > seqs and names and alone:
        text = (
            f"{work.batch} requests at once, and max_num_seqs is {seqs}: no step gives each of them a token, so "
            f"{names[0]} has no value; set max_num_seqs to at least {work.batch}, or batch to at most {seqs}"
        )
        yield cell.problem(cell.own("batch", "max_num_seqs"), text)
    if kept := cannot_hold(model_folder(cell.loaded), args, work):
        text = (
            f"{work.batch} requests of {work.input_tokens} + {work.output_tokens} tokens keep {kept} bytes on each "
            f"rank, and the cache has {args[PINNED]}: requests wait or are preempted; raise it, or lower batch or "
            "lengths"
        )
        yield cell.problem(PINNED, text)
    tokens = work.input_tokens + work.output_tokens
    if length is not None and tokens > length:
        text = f"{work.input_tokens} + {work.output_tokens} tokens are more than max_model_len, {length}: "
        fits = f"set max_model_len to at least {tokens}"
        fits += f", or output_tokens to at most {length - work.input_tokens}" * (length > work.input_tokens)
        key = "input_tokens" if work.input_tokens >= length else "output_tokens"
        yield cell.problem(cell.own(key, "max_model_len"), text + fits)
    if batched is not None and seqs is not None and batched < seqs:
        text = f"{batched} tokens a step, and max_num_seqs is {seqs}: set max_num_batched_tokens to at least {seqs}"
        yield cell.problem(cell.own("max_num_batched_tokens", "max_num_seqs"), text)
    if batched is not None and length is not None and batched < length and args.get("enable_chunked_prefill") is False:
        text = (
            f"{batched} tokens a step are below max_model_len, {length}, and enable_chunked_prefill is false: set "
            f"max_num_batched_tokens to at least {length}"
        )
        yield cell.problem(cell.own("max_num_batched_tokens", "max_model_len", "enable_chunked_prefill"), text)


def _unknown_token(cell: _Cell) -> Iterator[Problem]:
    """A token for images that the model has not; some models have theirs beyond the vocabulary, and name it."""
    images, folder = images_of(cell.workload), model_folder(cell.loaded)
    if images is None or images.token is None or folder is None:
        return
    try:
        config = read_config(folder)
    except UsageError:
        return
    size = text_part(config).get("vocab_size")
    if type(size) is int and images.token >= size and images.token not in map(config.get, IMAGE_TOKENS):
        text = f"the model has no such token: its vocabulary has {size}"
        yield cell.loaded.problem(("workload", "images", "token"), text)


def _too_many_figures(cell: _Cell) -> Iterator[Problem]:
    """More than a record holds; half of it is left to dropped pairs, further looks and traces."""
    scenario = cell.loaded.scenario
    work, measure = work_of(scenario.engine.driver)(cell.workload), scenario.measure
    each, holds = work.figures(cell.loaded.file)
    iterations = measure.choose.most if measure.choose else measure.iterations
    figures, most = 2 * measure.looks[-1] * iterations * each, RECORD.values // 2
    if figures > most:
        text = (
            f"{measure.looks[-1]} pairs of {iterations} {work.iteration}s with {holds} yield {figures / 1e6:.0f} "
            f"million figures, and a record takes {most / 1e6:.0f}: take fewer iterations, requests or tokens"
        )
        yield cell.loaded.problem(("measure", "iterations"), text)


def _whole(args: Mapping[str, Any], key: str) -> int | None:
    """An argument that is given as a positive number; -1 and words ask the engine to choose."""
    value = args.get(key)
    return value if type(value) is int and value > 0 else None


def _hardly_meant(cell: _Cell) -> Iterator[Problem]:
    """What an engine on a CPU does unless it is told otherwise, and gates that have no value there."""
    if not cell.on_cpu:
        return
    variables = cell.variables
    if CACHE_VARIABLE not in variables and all(cell.args.get(key) is None for key in CACHE_ARGS):
        text = (f"on a CPU vLLM reserves most of the host's memory unless kv_cache_memory_bytes says how much; "
                f"add kv_cache_memory_bytes: {_cache_bytes(cell)}")  # fmt: skip
        yield cell.loaded.problem(("engine", "args"), text, at_key=True)
    if THREADS_VARIABLE not in variables:
        text = (f"on a CPU vLLM binds its threads to cores, and a core that something else uses makes steps several "
                f"times as long; add {THREADS_VARIABLE}: nobind")  # fmt: skip
        yield cell.loaded.problem(("engine", "env"), text, at_key=True)
    for number, gate in enumerate(cell.loaded.scenario.gates):
        if gate.measured.of_gpu:
            text = f"{gate.metric} is measured on GPUs alone, and this engine runs on the CPU: remove the gate there"
            yield cell.loaded.problem(("gates", number, "metric"), text)


def _cache_bytes(cell: _Cell) -> int:
    """Twice what the workload's keys and values take, as a power of two; a GiB where that is not known."""
    folder, work = model_folder(cell.loaded), cell.workload
    if folder is None or not isinstance(work, Workload) or work.images is not None:
        return UNKNOWN_CACHE_BYTES
    sizes = {"input_tokens": work.input_tokens, "output_tokens": max(2, work.output_tokens)}
    try:
        demand = step_demand(read_config(folder), cell.args, batch=work.batch, **sizes)
    except UsageError:
        return UNKNOWN_CACHE_BYTES
    needed = 2 * demand.kv_written * sum(sizes.values())
    return max(LEAST_CACHE_BYTES, 1 << (int(needed) - 1).bit_length())
