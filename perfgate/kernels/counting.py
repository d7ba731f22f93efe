"""Counted trials: a fresh engine of which ncu counts some launches of one decode step.

Which launches these are is chosen from the same side's traced trial
(:func:`perfgate.kernels.launch_window.choose_window`); ncu skips and counts by their place in the step, whose range
the worker opens. It runs kernels one by one and several times, so nothing here is a time of the workload: such a
trial has no iterations.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.worker import Limit
from perfgate.counters.launch_table import KernelLaunch
from perfgate.counters.ncu_csv import cause_in, parse_ncu
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.kernels.launch_window import LaunchWindow, choose_window, metrics_counted
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.metrics.trial import Artifact, Iteration
from perfgate.scenario.counter_trials import STEPS_BEHIND
from perfgate.scenario.kernel_names import COMMUNICATION, RoleRule
from perfgate.scenario.workload import Workload
from perfgate.trace.decode_step import DecodeSteps, KernelKey
from perfgate.trace.families import classify, normalised_name, short_name
from perfgate.trace.profiler_commands import NCU_SETTINGS, VERSION_TIMEOUT_S, run

PRINT_TIMEOUT_S: Final = 300.0
"""How long ncu may take to print a report."""
WARM_UP_TOKENS: Final = 8
"""Enough for every kernel of a decode step to be compiled before the counted one."""
KV_BLOCK: Final = 16
KV_ROOM: Final = 1.25
"""Of the cache that the workload needs, in whole blocks."""
PASSES: Final = "profiler__replayer_passes"


@dataclass(frozen=True)
class _Plan:
    """What to count: metrics over a window of a step, and the trace that it was chosen from."""

    ncu: str
    metrics: tuple[str, ...]
    window: LaunchWindow
    trace: DecodeSteps
    step: int


class Ncu(Instrument):
    """ncu around a worker. Clocks are left alone: perfgate holds them, or nobody."""

    name, unreadable, report_s = "ncu", "counters-unreadable", 180.0
    _plan: _Plan

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._report, self._log = (job.folder.resolve() / name for name in ("counters.ncu-rep", "counting.log"))
        self._counted: CountedStep | None = None
        self._kept: tuple[Artifact, ...] = ()

    def prepare(self) -> Launch:
        """Choose what is to be counted."""
        plan = self._plan = _choose(self.job)
        ranges = [plan.step]
        if plan.window.begin + plan.window.count > len(plan.window.pattern.kernels):
            ranges.append(plan.step + 1)
        flags = ["--config-file", "off", "--target-processes", "all", "--replay-mode", "kernel"]
        flags += ["--graph-profiling", "node", "--launch-skip", str(plan.window.begin)]
        flags += ["--launch-count", str(plan.window.count), "--metrics", ",".join(plan.metrics)]
        flags += ["--clock-control", "none", "--cache-control", self.job.cell.counted.cache_control, "--nvtx"]
        flags += [word for step in ranges for word in ("--nvtx-include", f"perfgate.step.{step}")]
        flags += ["--force-overwrite", "--export", str(self._report), "--log-file", str(self._log)]
        return Launch([plan.ncu, *flags], NCU_SETTINGS, _small_cache(self.job))

    def drive(self, engine: Engine, say: Say) -> Iterator[Iteration]:
        """Warm the engine up, and run one batch until the step is behind; neither is an iteration of the trial."""
        cell, plan = self.job.cell, self._plan
        engine.wait_alone()
        engine.iterate(_at_most(cell.batch, WARM_UP_TOKENS), 0)
        say(f"{plan.window.count} launches from launch {plan.window.begin} of step {plan.step} on, ncu")
        engine.profile(on=True, ranges="nvtx", window=False)
        limit = Limit(time.monotonic() + cell.counted.limit, "counters-missing", "engine-failed")
        engine.iterate(_at_most(cell.batch, plan.step + STEPS_BEHIND), 1, limit)
        engine.profile(on=False, ranges="nvtx", window=False)
        yield from ()

    def collect(self, say: Say) -> None:
        """Have ncu print its report, and read that."""
        if not self._report.is_file():
            raise InvalidTrialError("counters-missing", f"ncu left no report\n{self._said}")
        self._kept = (Artifact.of(self._report, self.job.run_folder),)
        say("reading the counters")
        page = _print(self.job, self._plan.ncu, self._report)
        self._kept = (*self._kept, self.job.packed("counters.csv", page.encode()))  # a report can be read by ncu alone
        self._counted = _read(self.job, self._plan, page, _source(self.job, self._plan.ncu))

    def explain(self, error: PerfgateError) -> PerfgateError:
        """Ncu's own account says more than an engine that ended, or a report that is missing."""
        cause = cause_in(self._said.splitlines(), "ncu") if isinstance(error, InvalidTrialError) else None
        return cause or error

    def fields(self) -> dict[str, Any]:
        """Counters and reports. Its start-up is ncu's, and its cache a small one: no figure of the engine's."""
        return {"startup": None, "counted": self._counted, "traces": self._kept}

    @property
    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


def _choose(job: Job) -> _Plan:
    """What is to be counted, and by which ncu.

    Raises:
        NotMeasuredError: It cannot be counted here.
    """
    ncu = shutil.which("ncu", path=job.environment.get("PATH")) if job.gpu else None
    if ncu is None:
        raise NotMeasuredError("no ncu on PATH" if job.gpu else "no GPU here", code="counters-not-countable")
    if job.decode is None:
        text = f"no valid traced trial of {job.label} says what a step runs"
        raise NotMeasuredError(text, code="counters-missing")
    if any(key.role == COMMUNICATION for key in job.decode.keys):
        names = sorted({short_name(key.name) for key in job.decode.keys if key.role == COMMUNICATION})
        raise NotMeasuredError(f"the decode step runs {', '.join(names)}", code="counters-not-countable")
    step = job.cell.counted.step or usual_step(job.cell.batch)
    return _Plan(ncu, metrics_counted(job.cell, job.architecture), choose_window(job.decode, job.cell.counters),
                 job.decode, step)  # fmt: skip


def _at_most(workload: Workload, tokens: int) -> Workload:
    return workload.model_copy(update={"output_tokens": min(workload.output_tokens, tokens)})


def usual_step(workload: Workload) -> int:
    """A decode step in the middle of the workload, and in the middle of a block of the KV cache.

    Steps that begin a block run a kernel more (docs/measurements.md), and vLLM's usual block has 16 tokens.
    """
    middle = workload.output_tokens // 2
    step = middle - (workload.input_tokens + middle) % KV_BLOCK + KV_BLOCK // 2
    return step if 2 <= step <= workload.output_tokens - STEPS_BEHIND else max(middle, 1)  # noqa: PLR2004 (prefill)


def _small_cache(job: Job) -> dict[str, Any]:
    """An argument for a KV cache no larger than the workload needs: replay saves what kernels may write.

    Nothing where the demand is not known, or images add to the prompt; the cache is then the scenario's.
    """
    cell, args = job.cell, job.engine_args
    work = cell.batch
    if cell.model_folder is None or work.images is not None:
        return {}
    try:
        config = read_config(Path(cell.model_folder))
        sizes = {"batch": work.batch, "input_tokens": work.input_tokens, "output_tokens": work.output_tokens}
        token_bytes = step_demand(config, args, **sizes).kv_written / work.batch
    except UsageError:  # costs room, no trial
        return {}
    longest = args.get("max_model_len") or config.get("max_position_embeddings") or 0
    if not isinstance(longest, int):
        return {}
    tokens = max(work.batch * (work.input_tokens + work.output_tokens), longest)
    needed = math.ceil(KV_ROOM * tokens * token_bytes)
    cache_bytes = args.get("kv_cache_memory_bytes")
    return {} if isinstance(cache_bytes, int) and cache_bytes <= needed else {"kv_cache_memory_bytes": needed}


def _print(job: Job, ncu: str, report: Path) -> str:
    """The raw page of a report.

    Raises:
        NotMeasuredError: ``counters-unreadable``: ncu could not print it.
    """
    arguments = ["--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    arguments += ["--print-kernel-base", "demangled", "--rename-kernels", "off"]
    ran = run([ncu, *arguments], {**job.environment, **NCU_SETTINGS}, job.folder, PRINT_TIMEOUT_S)
    if ran.status != 0:
        text = f"ncu --import ended with status {ran.status}\n{ran.end}"
        raise NotMeasuredError(text, code="counters-unreadable")
    return ran.text


def _source(job: Job, ncu: str) -> str:
    ran = run([ncu, "--version"], job.environment, job.folder, VERSION_TIMEOUT_S)
    version = re.search(r"[Vv]ersion (\S+)", ran.text)
    return f"ncu {version[1]}" if version else "ncu"


def _read(job: Job, plan: _Plan, page: str, source: str) -> CountedStep:
    """The launches with their places in the step.

    Raises:
        NotMeasuredError: ncu counted nothing, or not the launches that were asked for.
        RecordError: ncu's page cannot be read.
    """
    counted = parse_ncu(page, "ncu's raw page").launches
    rules = job.cell.kernels.rules if job.cell.kernels else ()
    launches, others = _placed(counted, plan, rules)
    cautions = []
    if len(counted) < plan.window.count:  # a part of the window would be judged as if it were all
        text = f"ncu counted {len(counted)} of the {plan.window.count} launches asked for"
        raise NotMeasuredError(text, code="counters-missing")
    if others:
        text = f"{len(counted)} of {plan.window.count} launches counted"
        text += f", {len(others)} of which the trace does not have there: {', '.join(dict.fromkeys(others))}"
        if 2 * len(others) > len(counted):
            raise NotMeasuredError(text, code="counters-missing")
        cautions.append(("counters-missing", text))
    absent = [name for name in plan.metrics if any(name not in launch.values for launch in launches)]
    if absent:
        cautions.append(("counters-missing", f"not returned: {', '.join(absent)}"))
    passes = [int(launch.values[PASSES]) for launch in counted if PASSES in launch.values]
    units = {name: launch.units[name] for launch in counted for name in plan.metrics if name in launch.units}
    return CountedStep(
        source=source,
        step=plan.step,
        cache_control=job.cell.counted.cache_control,
        passes=max(passes, default=1),
        device=counted[0].gpu,
        units=units,
        launches=launches,
        cautions=tuple(cautions),
    )


def _placed(
    counted: Sequence[KernelLaunch], plan: _Plan, rules: Sequence[RoleRule]
) -> tuple[tuple[KernelLaunch, ...], list[str]]:
    """Each launch with its kernel and place; and the names of those that the trace does not have there.

    Two profilers spell one kernel's template arguments differently, so it is the function's name that must agree. A
    rarer step has a launch more or less, behind which all others still agree: the two sequences are aligned.
    """
    pattern, layers, others = plan.window.pattern, plan.window.pattern.layers(), []
    names = [short_name(launch.key.name) for launch in counted]
    positions = _aligned(names, plan)
    launches = []
    for name, launch, at in zip(names, counted, positions, strict=True):
        if at is None:
            others.append(name)
            (role,) = classify([launch.key.name], rules)
            key, position, layer = KernelKey(role=role, name=normalised_name(launch.key.name)), None, None
        else:
            key, position, layer = plan.trace.keys[pattern.kernels[at]], at, layers[at]
        values = {name: launch.values[name] for name in plan.metrics if name in launch.values}
        launches.append(launch.model_copy(
            update={"key": key, "position": position, "layer": layer, "values": values, "device": 0, "ranges": ()}
        ))  # fmt: skip
    return tuple(launches), others


def _aligned(names: Sequence[str], plan: _Plan) -> list[int | None]:
    """For each launch counted its position in the traced step; ``None`` where the trace has no such launch there."""
    positions = plan.window.positions
    expected = [short_name(plan.trace.keys[plan.window.pattern.kernels[position]].name) for position in positions]
    aligned: list[int | None] = [None] * len(names)
    for block in SequenceMatcher(None, names, expected, autojunk=False).get_matching_blocks():
        aligned[block.a : block.a + block.size] = positions[block.b : block.b + block.size]
    return aligned
