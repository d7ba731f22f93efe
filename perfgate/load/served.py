"""What the core asks of the load of a server: what goes with it, its trace, its price, how it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import JsonValue

from perfgate.errors import UsageError
from perfgate.load.arrival_kinds import APART_NS
from perfgate.load.arrival_trace import keep_trace, read_arrivals, trace_digest
from perfgate.load.arrivals import Arrived, crowded, longest, part
from perfgate.load.shape import DEFAULT_OUTPUT, Load
from perfgate.load.under_load import COUNTED_BY, COUNTS, MAX_RATE, MORE_WARMUP
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Iteration, Trial
from perfgate.models import FieldError, FieldPath, Note, Strict
from perfgate.scenario.margins import Gate
from perfgate.scenario.work import Work
from perfgate.scenario.yaml_document import in_flow
from perfgate.units import NS_PER_S, format_percent, plural

AT_ANY_RATE: Final = frozenset({"max_rate", "start_time", "start_time_cold", "kv_token_capacity"})
"""Metrics that mean something where each trial finds the rate that it measures at."""
OF_WORKERS: Final = frozenset({"model_memory", "kv_memory", "peak_memory", "activation_memory", "memory_fragmentation",
                               "device_memory_growth", "host_memory", "host_memory_growth"})  # fmt: skip
"""Metrics that the worker reads in the engine's own processes."""
MOST_GAPS: Final = 4096
"""Of the gaps between tokens in a record; of more, those at even ranks are kept. The timeline has all of them."""
FURTHEST_GAP: Final = 0.999
"""The quantile of kept gaps beyond which the longest of them would weigh too much."""


class LoadWork(Work):
    """The load of a server."""

    given: Load

    model = Load
    example: ClassVar[dict[str, JsonValue]] = {"arrival": {"poisson": 4}, "duration": "20s"}
    expected = "a server is given a load, like {arrival: {poisson: 4}, duration: 20s}"
    iteration = "window"
    steps_in_order = False
    runs_already = True
    longer_warmup = Work.longer_warmup | {MORE_WARMUP, MAX_RATE}
    file_path: ClassVar[FieldPath] = ("workload", "arrival", "replay")
    no_floor = "a server's steps have no fixed batch"

    def check(
        self, gates: Sequence[Gate], matrix: Mapping[str, object], warmup: int, profiled: Mapping[str, object]
    ) -> None:
        """No gate on decode steps or memory of the engine's processes, no batch in the matrix, no profiled trials."""
        for number, gate in enumerate(gates):
            if text := self._refused(gate, warmup):
                raise FieldError(("gates", number, "metric"), text)
            if gate.metric == "itl_quantile" and gate.quantile is not None and gate.quantile > FURTHEST_GAP:
                kept = "of the gaps between tokens a record keeps 4,096, and the longest would weigh too much beyond"
                text = f"expected at most {format_percent(FURTHEST_GAP)}: {kept}"
                raise FieldError(("gates", number, "quantile"), text)
        for key in ("batch", "input_tokens", "output_tokens"):
            if key in matrix:
                raise FieldError(("matrix", key), "a load has no such number: write a scenario for each load")
        for key, block in profiled.items():
            if block:
                raise FieldError((key,), "profiles the engine's own loop: it goes with driver: vllm")

    def _refused(self, gate: Gate, warmup: int) -> str:
        """Why a gate does not go with it; empty where it does."""
        sought = self.given.arrival.find is not None
        if gate.measured.kind != "timed" or gate.measured.needs_floor:
            return f"{gate.metric} is read from decode steps of a known batch, which driver: server has not"
        if gate.metric in OF_WORKERS:
            return f"{gate.metric} is read inside the engine's processes, which needs driver: vllm"
        if gate.metric == "kv_use" and not warmup:
            return "kv_use is read while requests of warm-up run: set measure.warmup_iterations to 1 or more"
        if sought and gate.metric not in AT_ANY_RATE:
            return f"{gate.metric} is measured at a rate that each trial finds: gate max_rate"
        if gate.metric == "max_rate" and not sought:
            return "max_rate needs a load like arrival: {find: {least: 1, most: 32, slo: {ttft: 500ms}}}"
        return ""

    def file(self, scenario: Path) -> Path | None:
        """The trace that it replays."""
        replay = self.given.arrival.replay
        return None if replay is None else (scenario.parent / replay.file).resolve()

    def _trace(self, scenario: Path) -> tuple[Arrived, ...]:
        file = self.file(scenario)
        return read_arrivals(file) if file else ()

    def file_problem(self, file: Path, root: Path) -> str:
        """The trace is outside the repository, cannot be read, is another one, or does not go with the load."""
        if not file.is_relative_to(root):
            return "leads out of the repository"
        load, replay = self.given, self.given.arrival.replay
        try:
            digest, replayed = trace_digest(file), part(load, read_arrivals(file))
        except UsageError as error:
            return error.finding.replace(str(file), str(file.relative_to(root)))
        if replay is not None and replay.sha256 not in (None, digest):
            return f"is another file than sha256 says: it has {digest}"
        if load.requests is not None and load.requests > len(replayed):
            had = plural(len(replayed), "request")
            return f"has {had}, and a window of {load.requests} is asked for: leave requests out"
        if load.prefix is not None and load.input_tokens is None and any(entry.blocks for entry in replayed):
            return ("says which prompts begin alike (hash_ids), so prefix would do nothing: remove it, or give "
                    "input_tokens")  # fmt: skip
        lengths = load.input_tokens.quantiles if load.input_tokens else [entry.input_tokens for entry in replayed]
        return load.too_much(len(replayed), lengths or [0])

    def pinned(self, scenario: Path) -> Load:
        """With the digest of the trace."""
        file = self.file(scenario)
        return self.given if file is None else self.given.replaying(trace_digest(file))

    def pinned_as(self, measured: Strict) -> Load:
        """With the digest of that load's trace."""
        replay = measured.arrival.replay if isinstance(measured, Load) else None
        return self.given if replay is None else self.given.replaying(replay.sha256)

    def keep(self, scenario: Path, run_folder: Path) -> None:
        """Keep the trace."""
        if (file := self.file(scenario)) is not None:
            keep_trace(run_folder, file)

    def seconds(self, warmup: int, iterations: int) -> tuple[float, str] | None:
        """Its windows, those of a search among them."""
        if not self.given.lasts_s:
            return None
        sought = self.given.arrival.find.steps if self.given.arrival.find else 0
        words = "the length of its windows alone; starts come on top"
        return self.given.lasts_s * (warmup + sought + iterations), words

    def unlike(self, iterations: Sequence[Iteration]) -> str:
        """Requests of a window have a length each."""
        served = all(iteration.lengths for iteration in iterations)
        return "" if served else "holds iterations of a batch, and its cell is a server's"

    def setting(self) -> dict[str, Any]:
        """The load in a few words: ``load poisson: 4, 60 requests``."""
        load = self.given
        ((arrival, what),) = load.arrival.model_dump(mode="json", exclude_none=True).items()
        seconds = f"{load.duration:g} s" if load.duration else ""
        size = seconds if load.requests is None else f"{load.requests} requests"
        words = ", ".join(filter(None, [f"load {arrival}: {in_flow(what)}", size]))
        return {"batch": 0, "input_tokens": 0, "output_tokens": 0, "load": words}

    def cautions(self, sides: Mapping[Side, Sequence[Trial]]) -> Iterator[Note]:
        """By what each side's tokens were counted, where that differs: a server may bundle those of an event."""
        named = dict(enumerate(COUNTS))
        by = {
            side: " and ".join(sorted({named.get(trial.figures.get(COUNTED_BY, 0), "other means") for trial in trials}))
            for side, trials in sides.items()
            if trials
        }
        if len({*by.values()}) > 1:
            text = ", ".join(f"those of {side} by {what}" for side, what in by.items())
            yield Note(code="engine-tells-less", text=f"tokens of a server's events: {text}")

    def unfit(self, arguments: Mapping[str, Any], scenario: Path) -> Iterator[tuple[FieldPath, str]]:
        """Requests that no server with this context would take, and a trace that no client can replay so fast."""
        trace, length = self._trace(scenario), arguments.get("max_model_len")
        most = longest(self.given, trace)
        if most is not None and type(length) is int and 0 < length < most:
            text = f"a request of this load can have {most} tokens, and max_model_len is {length}: "
            yield ("workload",), f"{text}raise it, or shorten them"
        if (rate := crowded(self.given, trace)) is not None:
            text = f"the trace comes to {rate:.0f} requests a second, and requests are {APART_NS // 1000} us apart at "
            text += f"least, {NS_PER_S / APART_NS:.0f} a second: replay it slower, with a lower speed"
            yield self.file_path, text

    def figures(self, scenario: Path) -> tuple[int, str]:
        """Three a request, of a window that lasts for a time as many as come in the mean, and the gaps."""
        load, trace = self.given, self._trace(scenario)
        replayed = len(part(load, trace)) if trace else None
        requests = replayed or load.requests or math.ceil((load.duration or 0.0) * load.most_per_second)
        return 3 * requests + MOST_GAPS, f"{requests} requests"

    @property
    def most_tokens(self) -> int:
        """Windows of a search may have more requests than those that are measured."""
        load = self.given
        if load.arrival.find is None:
            return 0
        return round(load.most_requests * (load.output_tokens or DEFAULT_OUTPUT).longest)
