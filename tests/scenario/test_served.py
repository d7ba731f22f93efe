"""What goes with a driver of servers, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CONFIG

from perfgate.errors import ScenarioError
from perfgate.load.shape import Load
from perfgate.record.cost import kind_cost
from perfgate.scenario.declaration import dump, load, loads
from perfgate.scenario.plan import Cell, resolve_cells

ROOT = Path(__file__).parents[2]
TEXT = """schema: 1
name: tiny
engine: {driver: server, model: {hub: a/b, revision: 0123abc}}
workload: {arrival: {poisson: 4}, requests: 10, output_tokens: 16}
gates:
  - {metric: ttft_quantile, quantile: 99%, ignorable: 1%, must_catch: 5%}
"""


def problem(old: str, new: str) -> str:
    """The one problem of the scenario with a text replaced."""
    assert old in TEXT
    with pytest.raises(ScenarioError) as caught:
        loads(TEXT.replace(old, new), Path("s.yaml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("driver: server", "driver: vllm", "workload.arrival: unknown key"),
        ("poisson: 4", "poison: 4", "workload.arrival.poison: unknown key (did you mean 'poisson'?)"),
        ("arrival: {poisson: 4}, requests: 10, output_tokens: 16", "batch: 2", "workload.batch: unknown key"),
        ("arrival: {poisson: 4}, ", "", "workload.arrival: is missing; add it, for example arrival: {poisson: 4}"),
        ("gates:", "calls: {}\\ngates:", "calls: profiles the engine's own loop"),
        ("gates:", "matrix: {batch: [1]}\\ngates:", "matrix.batch: a load has no such number"),
        ("ttft_quantile, quantile: 99%", "mbu", "gates[0].metric: mbu is read from decode steps"),
        ("ttft_quantile, quantile: 99%", "peak_memory", "gates[0].metric: peak_memory is read inside"),
        ("quantile: 99%, ", "", "gates[0]: ttft_quantile needs one, like quantile: 99%"),
        ("quantile: 99%", "quantile: 100%", "gates[0].quantile: expected a percentage above 0% and below 100%"),
        ("ttft_quantile, quantile: 99%", "goodput, slo: {}", "gates[0].slo: expected at least one of ttft, tpot, e2e"),
        ("{poisson: 4}, requests: 10", "{replay: {file: a.csv}}", "traces are not replayed"),
        ("revision: 0123abc}", "revision: 0123abc}, command: [x]", "engine.command: needs {port}"),
    ],
)
def test_a_mistake_is_told_with_its_place(old: str, new: str, said: str) -> None:
    """Each of the one kind of workload that the driver takes."""
    assert said in problem(old, new.replace("\\n", "\n"))


def test_a_command_and_metrics_of_servers_need_the_driver() -> None:
    """The engine's own loop has neither."""
    batch = TEXT.replace("arrival: {poisson: 4}, requests: 10, ", "batch: 1, input_tokens: 2, ")
    plain = batch.replace("driver: server, ", "")
    with pytest.raises(ScenarioError, match="ttft_quantile is a server's: it needs driver: server"):
        loads(plain, Path("s.yaml"))
    with pytest.raises(ScenarioError, match="command: goes with driver: server"):
        loads(plain.replace("0123abc}", '0123abc}, command: ["{port}"]'), Path("s.yaml"))


@pytest.mark.parametrize(
    ("arrival", "window_s"),
    [
        ("{poisson: 4}, requests: 10", 2.5),
        ("{bursts: {rate: 5, size: 5}}, requests: 10", 2.0),
        ("{ramp: {start: 1, end: 9}}, requests: 10", 2.0),
        ("{constant: 4}, duration: 60s", 60.0),
        ("{closed: {concurrency: 1}}, requests: 10", None),
    ],
)
def test_what_windows_take_at_least_is_known_before_the_first_run(arrival: str, window_s: float | None) -> None:
    """Twenty windows, the default, can be hours: a price says so, and where answers decide it is unknown."""
    (cell,) = resolve_cells(loads(TEXT.replace("{poisson: 4}, requests: 10", arrival), Path("s.yaml")))
    cost = kind_cost(cell, "timed", None)
    assert cost.minutes == (
        None if window_s is None else pytest.approx([n * 22 * window_s / 60 for n in (10, 14, 18, 26)])
    )
    assert ("windows alone" in cost.source) is (window_s is not None)


def test_a_load_survives_the_way_through_a_record() -> None:
    """A dumped scenario loads to the same, and so does the cell that a record keeps; a command makes another cell."""
    loaded = loads(TEXT, Path("s.yaml"))
    assert isinstance(loaded.scenario.workload, Load)
    assert loads(dump(loaded.scenario), Path("s.yaml")).scenario == loaded.scenario
    (cell,) = resolve_cells(loaded)
    assert Cell.model_validate_json(cell.model_dump_json()) == cell
    with pytest.raises(TypeError, match="has a load and no batch"):
        _ = cell.batch
    (other,) = resolve_cells(loads(TEXT.replace("0123abc}", '0123abc}, command: ["{port}"]'), Path("s.yaml")))
    assert other.cell_id != cell.cell_id


def test_the_shipped_scenario_fits_its_model() -> None:
    """No request of it is longer than the context."""
    shipped = load(ROOT / "scenarios" / "cpu-tiny-server.yaml").scenario
    assert isinstance(shipped.workload, Load)
    longest, context = shipped.workload.longest, shipped.engine.args["max_model_len"]
    assert longest is not None
    assert isinstance(context, int)
    assert longest <= context < CONFIG["max_position_embeddings"]
