"""The catalogue of plants: what is in it, what a plant.yaml may say, and what a plant makes of a subject."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest

from perfgate.drill.plants import Device, Expected, Family, Plant, load_catalogue, load_plant
from perfgate.errors import ScenarioError, UsageError
from perfgate.scenario.declaration import load
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload

CATALOGUE = Path(__file__).parents[2] / "drills"
LINES = {
    "schema": "schema: 1",
    "name": "name: slow",
    "family": "family: host-work",
    "what": "what: The host works longer.",
    "runs_on": "runs_on: [cpu, cuda]",
    "args": "args: {async_scheduling: false}",
    "dial": "dial: {variable: OMP_NUM_THREADS, unit: us, sizes: {cpu: ['10', '20'], cuda: ['30']}}",
    "expect": "expect: {metric: itl_median, step_us_per_unit: {cpu: 2}, cause: {cuda: host}}",
}


def written(folder: Path, *, plugin: bool = False, **lines: str) -> Path:
    """A plant's folder with these lines in place of the usual ones; an empty line is left out."""
    folder.mkdir()
    text = "".join(f"{line}\n" for line in (LINES | lines).values() if line)
    (folder / "plant.yaml").write_text(text, encoding="utf-8")
    if plugin:
        (folder / f"{folder.name}.py").touch()
        found = folder / f"{folder.name}-0.1.dist-info"
        found.mkdir()
        (found / "METADATA").write_text(f"Name: {folder.name}\nVersion: 0.1\n")
        (found / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{folder.name} = {folder.name}:register\n")
    return folder


def test_every_plant_loads() -> None:
    """Each folder is a plant of its name, by name."""
    plants = load_catalogue(CATALOGUE)
    assert [plant.name for plant in plants] == sorted(entry.name for entry in CATALOGUE.iterdir() if entry.is_dir())
    assert all(bool(plant.path) == any((CATALOGUE / plant.name).glob("*.py")) for plant in plants)


def test_the_catalogue_is_whole() -> None:
    """Every family has a plant, both devices have enough of them, and many re-create a regression that happened."""
    plants = load_catalogue(CATALOGUE)
    assert {plant.family for plant in plants} == {*get_args(Family)}
    assert len(plants) >= 22
    assert len([plant for plant in plants if "cpu" in plant.runs_on]) >= 10
    assert len({one.issue for plant in plants for one in plant.recreates}) >= 10


def test_a_longer_step_has_a_cause() -> None:
    """A plant that lengthens the decode step, which is traced, says on each device what the report must name."""
    plants = [plant for plant in load_catalogue(CATALOGUE) if plant.expect.metric == "itl_median"]
    assert [plant.name for plant in plants if {*plant.expect.cause} != {*plant.runs_on}] == []


@pytest.mark.parametrize(("name", "change"), [("native_ops", {"custom_ops": ["none"]}),
                                            ("uncovered_batch", {"cudagraph_capture_sizes": [1, 4]})])  # fmt: skip
def test_a_block_is_replaced_by_itself(name: str, change: dict[str, Any]) -> None:
    """A plant that sets a whole block of arguments changes one thing of the block that the drill's scenario has."""
    own = load(CATALOGUE / "h200.yaml").scenario.engine.args["compilation_config"]
    assert isinstance(own, dict)
    assert load_plant(CATALOGUE / name).args == {"compilation_config": {**own, **change}}


@pytest.mark.parametrize(("scenario", "device"), [("cpu", "cpu"), ("h200", "cuda")])
def test_a_batch_outgrows_the_cache_of_preempted_requests(scenario: str, device: Device) -> None:
    """All prompts of the drill's own scenario fit into the blocks that the plant leaves, and not all of its tokens."""
    workload = load(CATALOGUE / f"{scenario}.yaml").scenario.workload
    assert isinstance(workload, Workload)
    plant = load_plant(CATALOGUE / "preempted_requests")
    (size,) = plant.sizes(device)
    tokens, blocks = int(str(plant.base_args["block_size"])), int(size) - 1  # vLLM keeps a block for itself
    prompts = workload.batch * math.ceil(workload.input_tokens / tokens)
    whole = workload.batch * math.ceil((workload.input_tokens + workload.output_tokens) / tokens)
    assert prompts <= blocks < whole


def test_a_plant_survives_json() -> None:
    """What a campaign writes of a plant is the plant again."""
    for plant in load_catalogue(CATALOGUE):
        assert Plant.model_validate_json(plant.model_dump_json()) == plant


def test_a_plugin_goes_in_front_of_the_base(tmp_path: Path) -> None:
    """The head has the plant's folder first, and its environment and arguments over those of the base."""
    plant = load_plant(written(tmp_path / "slow", plugin=True, more="env: {A: plant, B: plant}"))
    base = Subject(python="python3", path=("/site",), env={"A": "base", "C": "base"}, args={"max_num_seqs": 4})
    with pytest.raises(UsageError, match="needs a size"):
        plant.subject(base, None)
    head = plant.subject(base, "20")
    assert head.path == (str(tmp_path / "slow"), "/site")
    assert head.env == {"A": "plant", "B": "plant", "C": "base", "OMP_NUM_THREADS": "20"}
    assert head.args == {"max_num_seqs": 4, "async_scheduling": False}


def test_a_feature_is_switched_on_for_both_sides(tmp_path: Path) -> None:
    """The base has ``base_args`` too, and nothing else of the plant."""
    plant = load_plant(written(tmp_path / "slow", dial="", more="base_args: {enable_prefix_caching: true}",
                               expect="expect: {metric: itl_median}"))  # fmt: skip
    build = Subject(python="python3", args={"max_num_seqs": 4})
    assert plant.base(build).args == {"max_num_seqs": 4, "enable_prefix_caching": True}
    assert plant.subject(build, None).args == {
        "max_num_seqs": 4, "enable_prefix_caching": True, "async_scheduling": False,
    }  # fmt: skip
    assert plant.subject(build, None).path == ()
    with pytest.raises(UsageError, match="has no dial"):
        plant.subject(build, "5")


def test_a_dial_of_an_engine_argument_takes_json(tmp_path: Path) -> None:
    """The size becomes the argument's value, of the kind that JSON says."""
    dial = "dial: {argument: max_num_batched_tokens, unit: tokens, sizes: {cpu: ['64'], cuda: ['64']}}"
    plant = load_plant(written(tmp_path / "slow", args="", dial=dial, expect="expect: {metric: ttft_median}"))
    assert plant.subject(Subject(python="python3"), "64").args == {"max_num_batched_tokens": 64}


def test_sizes(tmp_path: Path) -> None:
    """Sizes are those of the device; what one adds to a step is known where the plant says so."""
    plant = load_plant(written(tmp_path / "slow"))
    assert (plant.sizes("cpu"), plant.sizes("cuda")) == (("10", "20"), ("30",))
    assert plant.step_s("cpu", "20") == pytest.approx(40e-6)
    assert (plant.step_s("cuda", "30"), plant.step_s("cpu", None), plant.step_s("cpu", "much")) == (None, None, None)


def test_a_pattern_picks_gates() -> None:
    """``*`` is the one wildcard of a metric: the brackets of a role are themselves."""
    gated = ("itl_median", "itl_p95", "kernel_time_per_step[gemm]", "kernel_time_per_step[attention]")
    assert Expected(metric="itl_*").gates(gated) == ("itl_median", "itl_p95")
    assert Expected(metric="kernel_time_per_step[gemm]").gates(gated) == ("kernel_time_per_step[gemm]",)
    assert Expected().gates(gated) == gated


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({"name": "name: other"}, "2:7: name: must be the name of its folder, slow, found 'other'"),
        ({"family": "family: hosts"}, "3:9: family: expected 'device-compute', "),
        ({"more": "speed: 1"}, "9:1: speed: unknown key; expected one of schema, name, "),
        ({"what": ""}, "1:1: what: is missing"),
        ({"runs_on": "runs_on: []"}, "5:10: runs_on: expected at least one entry"),
        ({"dial": "dial: {unit: us, sizes: {cpu: ['1'], cuda: ['1']}}"}, "7:7: dial: expected either a variable or an"),
        ({"dial": "dial: {variable: X, unit: us, sizes: {cpu: ['1']}}"}, "dial.sizes: expected sizes for cpu and cuda"),
        (
            {"dial": "dial: {argument: seed, unit: us, sizes: {cpu: ['1'], cuda: [x]}}"},
            "7:61: dial.sizes.cuda[0]: invalid JSON: ",
        ),
        ({"dial": ""}, "expect.step_us_per_unit.cpu: needs a dial whose sizes are whole numbers, found 2"),
        ({"more": "gpus: 2"}, "9:7: gpus: its engine arguments take 1"),
        ({"expect": "expect: {metric: itl_medan}"}, "8:18: expect.metric: expected one of ttft_median, "),
        ({"expect": "expect: {verdict: pass}"}, "8:9: expect: verdict: pass and caution: go together"),
        ({"expect": "expect: {reason: preempted}"}, "8:9: expect: verdict: not-measured and reason: go together"),
        (
            {"expect": "expect: {verdict: pass, caution: outputs-difer}"},
            "8:34: expect.caution: no such reason code (did you mean 'outputs-differ'?)",
        ),
        ({"expect": "expect: {cause: {cuda: '('}}"}, "8:24: expect.cause.cuda: invalid regular expression"),
        (
            {"runs_on": "runs_on: [cpu]", "dial": "", "expect": "expect: {cause: {cuda: host}}"},
            "expect.cause.cuda: the plant does not run there",
        ),
        ({"more": "recreates: [{issue: 12, mechanism: x}]"}, "9:21: recreates[0].issue: expected text"),
        (
            {"dial": LINES["dial"].replace("OMP_NUM_THREADS", "PERFGATE_PLANT_US")},
            "1:1: nothing reads PERFGATE_PLANT_US: no slow.py beside it",
        ),
        (
            {"args": "", "dial": "", "expect": "expect: {metric: itl_median}"},
            "1:1: does nothing: no slow.py beside it, no args, env or dial",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, lines: dict[str, str], problem: str) -> None:
    """An error says file, line, column and key."""
    folder = written(tmp_path / "slow", plugin=False, **lines)
    with pytest.raises(ScenarioError) as error:
        load_plant(folder)
    assert f"{folder}/plant.yaml:" in str(error.value)
    assert problem in str(error.value)


def test_a_module_that_vllm_would_not_see(tmp_path: Path) -> None:
    """A plugin without its entry point would do nothing, so it is an error."""
    folder = written(tmp_path / "slow", plugin=True)
    (folder / "slow-0.1.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nslow = slow:begin\n")
    with pytest.raises(ScenarioError, match=r"slow\.py needs a dist-info with one entry point"):
        load_plant(folder)


def test_named_plants_come_in_their_order(tmp_path: Path) -> None:
    """Those that are named, each once; problems of all of them are listed."""
    for name in ("first", "second", "third"):
        written(tmp_path / name, name=f"name: {name}")
    assert [plant.name for plant in load_catalogue(tmp_path, ("third", "first", "third"))] == ["third", "first"]
    for name in ("first", "second"):
        (tmp_path / name / "plant.yaml").write_text("[")
    with pytest.raises(ScenarioError) as error:
        load_catalogue(tmp_path)
    assert [Path(problem.file).parent.name for problem in error.value.problems] == ["first", "second"]


def test_a_plant_that_does_not_exist(tmp_path: Path) -> None:
    """An unknown name, an empty folder and none at all are errors that say what there is."""
    with pytest.raises(UsageError, match="holds no plant"):
        load_catalogue(tmp_path)
    written(tmp_path / "slow")
    with pytest.raises(UsageError, match=r"no plant 'slo' \(did you mean 'slow'\?\)\n  Plants there: slow\."):
        load_catalogue(tmp_path, ("slo",))
    with pytest.raises(UsageError, match="no catalogue of plants: No such file"):
        load_catalogue(tmp_path / "none")
