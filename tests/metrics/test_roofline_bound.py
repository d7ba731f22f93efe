"""The floor of a trial: found while it is taken, kept in the record, judged as utilisation, shown once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine
from hand_made import BOTH, cell, codes, gate, judged, only, scenario_file, spread, trials

from perfgate import gate as use_cases
from perfgate.metrics.catalogue import trial_value
from perfgate.metrics.roofline_bound import Floor, find_floor
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_record
from perfgate.report.outcome_lines import floor_line, ungated_line

LLAMA = str(Path(__file__).parents[2] / "scenarios/models/llama-8b")
DECODE = {"batch": 8, "input_tokens": 512, "output_tokens": 128}
H200 = ("NVIDIA H200",)


def llama_floor(gpu: str = "NVIDIA H200", **args: Any) -> Floor:
    """The floor of Llama 8B on one GPU."""
    found = find_floor(LLAMA, {"dtype": "bfloat16", **args}, (gpu,), **DECODE)
    assert found.floor is not None, found.why_not
    return found.floor


def floored(taken: tuple[Trial, ...], floor: Floor | None, words: str = "") -> tuple[Trial, ...]:
    """The same trials with this floor."""
    return tuple(one.model_copy(update={"floor": floor, "no_floor": words}) for one in taken)


def test_the_floor_of_a_dense_model_on_an_h200() -> None:
    """Weights and cache at 4.81 TB/s take 3.24 ms, 26 times the operations at 989 TFLOP/s."""
    floor = llama_floor()

    assert floor.bytes_moved["weights"] == pytest.approx(15.01e9, rel=1e-3)
    assert floor.bytes_moved["kv-cache"] == pytest.approx(8 * 577 * 131_072, rel=1e-2)
    assert floor.bytes_per_second == 4_814_304_000_000
    assert floor.memory_ns == round(sum(floor.bytes_moved.values()) / floor.bytes_per_second * 1e9)
    assert floor.compute_ns == round(floor.operations["fp16"] / floor.operations_per_second["fp16"] * 1e9)
    assert (floor.bound, round(floor.floor_s * 1e3, 2)) == ("memory", 3.24)
    assert "6,016 bits" in floor.source


@pytest.mark.parametrize(("args", "share"), [({"quantization": "fp8"}, 0.554), ({"tensor_parallel_size": 2}, 0.5)])
def test_a_subjects_own_arguments_move_its_floor(args: dict[str, Any], share: float) -> None:
    """Weights of one byte, or half of the model on a GPU, leave about half of the bytes to move."""
    assert llama_floor(**args).memory_ns == pytest.approx(share * llama_floor().memory_ns, rel=0.02)


@pytest.mark.parametrize(
    ("folder", "config", "gpus", "says"),
    [
        ("model", {}, (), "ran on the CPU"),
        (None, {}, H200, "the model is on the hub"),
        ("model", {}, ("NVIDIA H200", "NVIDIA H100"), "the GPUs differ"),
        ("model", {}, ("Tesla T4",), "peak bandwidth and FLOP/s of 'Tesla T4' are not in the table The table has H200"),
        ("model", {"model_type": "mamba"}, H200, "decode steps of model_type 'mamba' are not counted"),
        ("model", {"torch_dtype": "float64"}, H200, "dtype 'float64' is not counted"),
        (
            "model",
            {"num_key_value_heads": "many"},
            H200,
            "num_key_value_heads 'many', expected a positive whole number",
        ),
        ("model", {"head_dim": "wide"}, H200, "another shape than is counted: ValueError"),
        ("absent", {}, H200, "config.json: cannot be read"),
    ],
)
def test_why_there_is_no_floor(
    tmp_path: Path, folder: str | None, config: dict[str, Any], gpus: tuple[str, ...], says: str
) -> None:
    """GPU, architecture and number format that are not counted are named; a broken configuration costs no trial."""
    (tmp_path / "model").mkdir()
    known = json.loads((Path(LLAMA) / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**known, **config}))

    found = find_floor(str(tmp_path / folder) if folder else None, {}, gpus, **DECODE)

    assert found.floor is None
    assert says in found.why_not
    assert not found.caution


@pytest.mark.parametrize(
    ("loaded", "gpus", "caution"),
    [
        *((16.06e9 * ratio, gpus, "") for gpus in (1, 2) for ratio in (1 / 1.49, 1, 1.49)),
        *((16.06e9 * ratio, gpus, "weights-apart") for gpus in (1, 2) for ratio in (1 / 1.51, 1.51)),
    ],
)
def test_an_engine_that_loaded_another_model_has_no_floor(loaded: float, gpus: int, caution: str) -> None:
    """Bytes of weights over all GPUs of more than 1.5 times what is counted, or less than two thirds, are a caution."""
    found = find_floor(LLAMA, {"tensor_parallel_size": gpus}, H200 * gpus, loaded=round(loaded), **DECODE)

    assert (found.caution, found.floor is None) == (caution, bool(caution))
    assert ("the engine loaded weights of" in found.why_not) == bool(caution)


@pytest.mark.parametrize(("beside", "args"), [("adapters", {"enable_lora": True}), ("images", {}), ("flat", {})])
def test_weights_beside_those_of_the_text_may_be_more(tmp_path: Path, beside: str, args: dict[str, Any]) -> None:
    """Adapters and what sees images are not counted; fewer weights than counted are still another model's."""
    known = json.loads((Path(LLAMA) / "config.json").read_text())
    seeing = {"images": {"text_config": known}, "flat": {**known, "vision_config": {"depth": 1}}}
    config = seeing.get(beside, known)
    (tmp_path / "config.json").write_text(json.dumps(config))

    more, less = (find_floor(str(tmp_path), args, H200, loaded=round(own), **DECODE) for own in (33e9, 5.9e9))

    assert more.floor is not None
    assert less.caution == "weights-apart"


def test_utilisations_of_a_trial() -> None:
    """Each is its part of the floor by the median step; a trial without a floor, or without a step, has none."""
    (one, _) = floored(trials([0.0]), llama_floor())

    assert trial_value("mbu", one) == pytest.approx(llama_floor().memory_ns / 5e6)
    assert trial_value("mfu", one) == pytest.approx(llama_floor().compute_ns / 5e6)
    assert trial_value("mbu", one.model_copy(update={"floor": None})) is None
    assert trial_value("mbu", one.model_copy(update={"iterations": ()})) is None


def test_a_gate_on_mbu_blocks_a_slower_step() -> None:
    """One percent more time is one percent less utilisation, which a gate of 0.1 and 0.5 % blocks."""
    slowdowns = spread(0.01, 0.0002, 6)
    outcome = judged(floored(trials(slowdowns), llama_floor()), cell(gates=[gate("mbu")]))

    found = only(outcome)
    assert (outcome.verdict, found.unit, found.better) == ("regressed", "ratio", "higher")
    assert found.change == pytest.approx(math.expm1(-0.01), rel=1e-4)


def test_a_gate_without_a_floor_is_not_measured_and_says_why() -> None:
    """The reason names the side and what is unknown; trials of before floors were kept have their own words."""
    known = floored(trials(spread(0.0, 0.0002, 4)), llama_floor())
    blind = tuple(
        one if one.subject == "base" else one.model_copy(update={"floor": None, "no_floor": "no roofs for 'T4'"})
        for one in known
    )
    for taken, text in (
        (blind, "no floor of head: no roofs for 'T4'"),
        (trials(spread(0.0, 0.0002, 4)), "no floor of base and head: its trials keep none"),
    ):
        found = only(judged(taken, cell(gates=[gate("mbu")])))
        assert (found.verdict, codes(found.reasons)) == ("not-measured", ["metric-unusable"])
        assert found.reasons[0].text == text


def test_a_cell_shows_its_floor_once() -> None:
    """One floor of both sides is said once, with both utilisations beside it and no longer among the other metrics."""
    (one,) = judged(floored(trials(spread(0.01, 0.0002, 4)), llama_floor())).cells
    assert floor_line(one) == "3.243 ms by memory, mbu 64.87 % to 64.22 %, mfu 2.476 % to 2.451 %"
    assert "mbu" not in ungated_line(one)

    (mixed,) = judged(
        tuple(
            t.model_copy(update={"floor": llama_floor(**({"quantization": "fp8"} if t.subject == "head" else {}))})
            for t in trials(spread(0.01, 0.0002, 4))
        )
    ).cells
    assert floor_line(mixed).startswith("base 3.243 ms by memory, mbu 64.87 %, mfu 2.476 %; head 1.")

    (without,) = judged(trials(spread(0.01, 0.0002, 4))).cells
    assert (without.floors, floor_line(without)) == ({}, "")


def test_a_gated_utilisation_stands_in_its_row_alone() -> None:
    """A gate's row has both sides' figures, so the floor's line leaves them out."""
    (one,) = judged(floored(trials(spread(0.0, 0.0002, 4)), llama_floor()), cell(gates=[gate("mbu")])).cells
    assert floor_line(one) == "3.243 ms by memory, mfu 2.476 % to 2.476 %"


@pytest.mark.usefixtures("no_orphans")
def test_a_run_says_which_side_loaded_another_model(tmp_path: Path, fake_nvml: FakeMachine) -> None:
    """A head whose weights are twice what is counted has a caution with both figures, and no floor."""
    assert fake_nvml.file.exists()
    scenario = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")
    (tmp_path / "model" / "config.json").write_text((Path(LLAMA) / "config.json").read_text())
    collector = FakeCollector(FakeSpec(restart_sd=0.0003, sleep_s=0.001, head_ratio={"model_memory": 2.0}))

    outcome = use_cases.run([scenario], BOTH, runs=tmp_path / "runs", seed=1, collector=collector).outcome

    (note,) = (one for one in outcome.cells[0].cautions if one.code == "load-unproven")
    assert note.text.startswith("head, in ")
    assert "loaded weights of 29.80 GiB, and config.json is counted as 14.96 GiB" in note.text
    assert [*outcome.cells[0].floors] == ["base"]


@pytest.mark.usefixtures("no_orphans")
def test_a_run_keeps_floors_and_gates_on_them(tmp_path: Path, fake_nvml: FakeMachine) -> None:
    """On a GPU every timed trial keeps its own side's floor; the gate on mbu passes, the head's halved floor shows."""
    assert fake_nvml.file.exists()
    scenario = scenario_file(tmp_path, gates="{metric: mbu, ignorable: 1%, must_catch: 5%}")
    (tmp_path / "model" / "config.json").write_text((Path(LLAMA) / "config.json").read_text())
    subjects = {**BOTH, "head": BOTH["head"].model_copy(update={"args": {"quantization": "fp8"}})}

    def run(sides: Any, weights: float = 1.0) -> tuple[use_cases.Finished, Record]:
        spec = FakeSpec(restart_sd=0.0003, sleep_s=0.001, head_ratio={"model_memory": weights})
        collector = FakeCollector(spec)
        finished = use_cases.run([scenario], sides, runs=tmp_path / "runs", seed=1, collector=collector)
        return finished, read_record(next((finished.folder / "records").iterdir()))

    same, _ = run(BOTH)
    other, record = run(subjects, weights=0.55)

    assert same.outcome.verdict == "pass"
    assert only(same.outcome).base == pytest.approx(0.6, rel=0.2)
    assert only(other.outcome).verdict == "regressed"
    floors = {(trial.subject, trial.floor.memory_ns if trial.floor else 0) for trial in record.trials}
    assert len(floors) == 2
    assert use_cases.judge_folder(other.folder) == other.outcome


@pytest.mark.usefixtures("no_orphans")
def test_a_gate_that_cannot_be_judged_is_told_of_early(tmp_path: Path, fake_nvml: FakeMachine) -> None:
    """On an unknown GPU a run says so for each side after its warm-up trial, and ends not measured."""
    FakeMachine.build(fake_nvml.file, {"name": "Tesla T4"})
    scenario = scenario_file(tmp_path, gates="{metric: mbu, ignorable: 1%, must_catch: 5%}")
    told: list[str] = []

    finished = use_cases.run(
        [scenario],
        BOTH,
        runs=tmp_path / "runs",
        seed=1,
        collector=FakeCollector(FakeSpec(sleep_s=0.001)),
        progress=lambda step: told.append(step) if isinstance(step, str) else None,
    )

    words = "cannot be judged, no floor: peak bandwidth and FLOP/s of 'Tesla T4' are not in the table"
    assert [f"tiny: a gate on {side} {words}" in " ".join(told) for side in BOTH] == [True, True]
    assert (finished.outcome.exit_status, codes(only(finished.outcome).reasons)) == (22, ["metric-unusable"])
