"""What a scenario for a server cannot declare, and what one for the engine's own loop cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perfgate.load.shape import Load
from perfgate.metrics.catalogue import LOAD_METRICS
from perfgate.models import FieldError
from perfgate.scenario.margins import Gate
from perfgate.scenario.workload import AnyWorkload, Engine

AT_ANY_RATE: Final = frozenset({"max_rate", "start_time", "start_time_cold", "kv_token_capacity"})
"""Metrics that mean something where each trial finds the rate that it measures at."""
SERVER: Final = "server"
"""The driver whose workload is a load."""
OF_SERVERS: Final = frozenset({"max_rate", "request_throughput", "queue_time", "preemptions", "prefix_hit_share",
                               "draft_acceptance", "kv_use", *LOAD_METRICS})  # fmt: skip
"""Metrics that only trials of a server carry."""
OF_WORKERS: Final = frozenset({"model_memory", "kv_memory", "peak_memory", "activation_memory", "memory_fragmentation",
                               "device_memory_growth", "host_memory", "host_memory_growth"})  # fmt: skip
"""Metrics that the worker reads in the engine's own processes."""


def is_served(content: Mapping[str, object]) -> bool:
    """Whether a scenario, as its file has it, is for a server."""
    engine = content.get("engine")
    return isinstance(engine, Mapping) and engine.get("driver") == SERVER


def check_load(
    engine: Engine, workload: AnyWorkload, gates: Sequence[Gate], matrix: Mapping[str, object], warmup: int
) -> None:
    """See that workload, gates and matrix are those of the driver.

    Args:
        engine: The engine.
        workload: What it is given.
        gates: What can block.
        matrix: Values of keys.
        warmup: Iterations of warm-up.

    Raises:
        FieldError: One is not.
    """
    served = engine.driver == SERVER
    if served != isinstance(workload, Load):
        text = "a server is given a load, like {arrival: {poisson: 4}, duration: 20s}" if served else "expected a batch"
        raise FieldError(("workload",), text)
    for number, gate in enumerate(gates):
        if not served and gate.metric in OF_SERVERS:
            raise FieldError(("gates", number, "metric"), f"{gate.metric} is a server's: it needs driver: server")
        if served and (gate.measured.kind != "timed" or gate.measured.needs_floor):
            text = f"{gate.metric} is read from decode steps of a known batch, which driver: server has not"
            raise FieldError(("gates", number, "metric"), text)
        if served and gate.metric in OF_WORKERS:
            text = f"{gate.metric} is read inside the engine's processes, which needs driver: vllm"
            raise FieldError(("gates", number, "metric"), text)
        if served and gate.metric == "kv_use" and not warmup:
            text = "kv_use is read while requests of warm-up run: set measure.warmup_iterations to 1 or more"
            raise FieldError(("gates", number, "metric"), text)
    if isinstance(workload, Load):
        _check_sought(workload, gates)
        for key in ("batch", "input_tokens", "output_tokens"):
            if key in matrix:
                raise FieldError(("matrix", key), "a load has no such number: write a scenario for each load")


def _check_sought(load: Load, gates: Sequence[Gate]) -> None:
    """See that gates rest on the highest rate where that is sought, and there alone."""
    for number, gate in enumerate(gates):
        at = ("gates", number, "metric")
        if load.arrival.find is not None and gate.metric not in AT_ANY_RATE:
            raise FieldError(at, f"{gate.metric} is measured at a rate that each trial finds: gate max_rate")
        if load.arrival.find is None and gate.metric == "max_rate":
            text = "max_rate needs a load like arrival: {find: {least: 1, most: 32, slo: {ttft: 500ms}}}"
            raise FieldError(at, text)


def check_blocks(engine: Engine, blocks: Mapping[str, object]) -> None:
    """See that a scenario for a server declares no trials that profile the engine.

    Args:
        engine: The engine.
        blocks: By key, what is declared of such trials; empty or ``None`` where nothing is.

    Raises:
        FieldError: It does.
    """
    for key, block in blocks.items():
        if block and engine.driver == SERVER:
            raise FieldError((key,), "profiles the engine's own loop: it goes with driver: vllm")
