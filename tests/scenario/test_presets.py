"""Presets: what of a scenario they measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import CONFIG
from fake_collector import FakeCollector
from hand_made import scenario_file

from perfgate.cli.main import main
from perfgate.record.manifest import read_manifest
from perfgate.scenario.declaration import LoadedScenario, load
from perfgate.scenario.presets import with_preset
from perfgate.scenario.workload import Workload


@pytest.fixture
def declared(tmp_path: Path) -> LoadedScenario:
    """A model of 12 heads, 8 requests at most and room for 96 tokens; the scenario's matrix names a data type."""
    file = scenario_file(tmp_path, more="matrix: {dtype: [bfloat16, float16]}")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"num_attention_heads": 12}))
    file.write_text(file.read_text().replace("{max_num_seqs: 4}", "{max_num_seqs: 8, max_model_len: 96}"))
    return load(file)


@pytest.mark.parametrize(("gpus", "sizes"), [(1, None), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 4]), (16, [1, 2, 4])])
def test_scaling(declared: LoadedScenario, gpus: int, sizes: list[int] | None) -> None:
    """Batches to the most that the engine takes, prompts to the most that there is room for, GPUs that divide heads."""
    matrix = with_preset(declared, "scaling", gpus).scenario.matrix
    assert matrix["batch"] == (1, 2, 4, 8)
    assert matrix["input_tokens"] == (4, 64)
    assert matrix.get("tensor_parallel_size") == (tuple(sizes) if sizes else None)
    assert matrix["dtype"] == ("bfloat16", "float16")


def test_scaling_leaves_prompts_beside_images_as_they_are(declared: LoadedScenario) -> None:
    """What the images take of the room is not known, so that a longer prompt may not fit."""
    shown = declared.text.replace("workload: {", "workload: {images: {width: 8, height: 8}, ")
    declared.file.write_text(shown)
    matrix = with_preset(load(declared.file), "scaling", 1).scenario.matrix
    assert "batch" in matrix
    assert "input_tokens" not in matrix


@pytest.mark.parametrize(
    ("args", "gpus", "sizes"),
    [
        ("pipeline_parallel_size: 2", 8, (1, 2, 4)),
        ("pipeline_parallel_size: 2, data_parallel_size: 2", 8, (1, 2)),
        ("tensor_parallel_size: 2", 8, (2, 4)),
        ("tensor_parallel_size: 4", 4, None),
    ],
)
def test_scaling_takes_no_more_gpus_than_there_are(
    declared: LoadedScenario, args: str, gpus: int, sizes: tuple[int, ...] | None
) -> None:
    """Stages and replicas multiply what tensor parallelism takes, which begins at what the scenario declares."""
    declared.file.write_text(declared.text.replace("max_num_seqs: 8", f"max_num_seqs: 8, {args}"))

    assert with_preset(load(declared.file), "scaling", gpus).scenario.matrix.get("tensor_parallel_size") == sizes


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"num_attention_heads": 40, "num_key_value_heads": 10}, (1, 2)),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, (1, 2, 4, 8)),
        ({"num_attention_heads": 16, "num_key_value_heads": 3}, None),
        ({"num_attention_heads": 8, "num_key_value_heads": 3, "kv_lora_rank": 4}, (1, 2, 4, 8)),
    ],
)
def test_scaling_to_gpus_that_divide_key_value_heads(
    declared: LoadedScenario, config: dict[str, int], sizes: tuple[int, ...] | None
) -> None:
    """Each GPU has whole heads of keys and values, or each head is on whole GPUs; a latent is on every GPU."""
    (declared.file.parent / "model" / "config.json").write_text(json.dumps(config))

    assert with_preset(declared, "scaling", 8).scenario.matrix.get("tensor_parallel_size") == sizes


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        ("compilation_config: {mode: 0, cudagraph_capture_sizes: [1, 3]}", [1, 2, 3, 4, 8]),
        ("compilation_config: {cudagraph_capture_sizes: [1, 2, 4, 8, 16]}", [1, 2, 4, 8, 16]),
        (
            "speculative_config: {num_speculative_tokens: 1}, compilation_config: {cudagraph_capture_sizes: [4]}",
            [1, 2, 4, 8, 16],
        ),
    ],
)
def test_scaling_captures_a_graph_of_each_batch(declared: LoadedScenario, args: str, sizes: list[int]) -> None:
    """A batch beyond the declared sizes runs without graphs, and one between them as the next larger one."""
    declared.file.write_text(declared.text.replace("max_num_seqs: 8", f"max_num_seqs: 8, {args}"))
    scaled = with_preset(load(declared.file), "scaling", 1).scenario

    assert scaled.matrix["batch"] == (1, 2, 4, 8)
    compilation = scaled.engine.args["compilation_config"]
    assert isinstance(compilation, dict)
    assert compilation["cudagraph_capture_sizes"] == sizes


def test_scaling_captures_to_the_largest_size_declared(declared: LoadedScenario) -> None:
    """A largest size that is not the list's own is refused by vLLM, so it is raised; without a list none is added."""
    both = "cudagraph_capture_sizes: [1, 2], max_cudagraph_capture_size: 2"
    declared.file.write_text(declared.text.replace("max_num_seqs: 8", f"max_num_seqs: 8, {both}"))
    args = with_preset(load(declared.file), "scaling", 1).scenario.engine.args

    assert (args["cudagraph_capture_sizes"], args["max_cudagraph_capture_size"]) == ([1, 2, 4, 8], 8)
    assert with_preset(declared, "scaling", 1).scenario.engine == declared.scenario.engine


def test_scaling_leaves_out_what_the_cache_cannot_hold(declared: LoadedScenario) -> None:
    """Batches whose keys and values are more than the pinned size, and the longer prompt where all batches would be."""
    (declared.file.parent / "model" / "config.json").write_text(json.dumps(CONFIG))
    a_token = CONFIG["num_hidden_layers"] * 2 * CONFIG["num_key_value_heads"] * 2
    a_token *= CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    work = declared.scenario.workload
    assert isinstance(work, Workload)
    kept = work.input_tokens + work.output_tokens - 1
    for size, batches, prompts in (
        (4 * kept * a_token, (1, 2, 4), None),
        (8 * kept * a_token, (1, 2, 4, 8), None),
        (8 * 2 * kept * a_token, (1, 2, 4, 8), (4, 8)),
    ):
        pinned = f"max_num_seqs: 8, kv_cache_memory_bytes: {size}"
        declared.file.write_text(declared.text.replace("max_num_seqs: 8", pinned))
        matrix = with_preset(load(declared.file), "scaling", 1).scenario.matrix
        assert (matrix["batch"], matrix.get("input_tokens")) == (batches, prompts)


@pytest.mark.needs("kernels")
def test_scaling_of_a_matrix_that_is_there(declared: LoadedScenario) -> None:
    """Where nothing is added the scenario is as it was, its envelope too."""
    own = "matrix: {batch: [2, 8], input_tokens: [4, 8]}\nkernels: {per_decode_step: {patterns: [{launches: 8}]}}"
    declared.file.write_text(declared.text.replace("matrix: {dtype: [bfloat16, float16]}", own))
    loaded = load(declared.file)

    assert with_preset(loaded, "scaling", 1) is loaded


@pytest.mark.needs("kernels")
def test_scaling_leaves_the_envelope_out(declared: LoadedScenario, tmp_path: Path) -> None:
    """It was learnt of one batch on one number of GPUs; how traced trials are taken stays."""
    file = tmp_path / "traced.yaml"
    file.write_text(
        f"{declared.text}kernels: {{traced: {{iterations: 3}}, per_decode_step: {{patterns: [{{launches: 8}}]}}}}\n"
    )
    kernels = with_preset(load(file), "scaling", 1).scenario.kernels
    assert kernels is not None
    assert not kernels.declares_envelope
    assert kernels.traced.iterations == 3


def test_quick(declared: LoadedScenario, tmp_path: Path) -> None:
    """The first value of each list, and few iterations; fewer stay as they are."""
    quick = with_preset(declared, "quick", 1).scenario
    assert quick.matrix == {"dtype": ("bfloat16",)}
    assert (quick.measure.warmup_iterations, quick.measure.iterations) == (1, 2)
    file = tmp_path / "long.yaml"
    file.write_text(
        declared.text.replace(", iterations: 2}", ", choose: {least: 8}}").replace(
            "warmup_iterations: 1", "warmup_iterations: 3"
        )
    )
    long = with_preset(load(file), "quick", 1).scenario
    assert (long.measure.warmup_iterations, long.measure.iterations, long.measure.choose) == (1, 5, None)


def test_comprehensive_is_as_declared(declared: LoadedScenario) -> None:
    """It is the run that takes more, not the scenario that is another one."""
    assert with_preset(declared, "comprehensive", 4) is declared


def test_a_run_keeps_what_its_preset_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has the scenario that results, so that a resumed run needs no preset and may not name one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["run", str(scenario_file(tmp_path)), "--base", "python=/bin/true", "--head", "env.BUILD=new"]
    priced = CliRunner().invoke(main, ["check", words[1], "--preset", "scaling"])
    assert "tiny[batch=4]" in priced.output
    ended = CliRunner().invoke(main, [*words, "--preset", "scaling"], obj=FakeCollector())
    assert "Curve: tiny against batch" in ended.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert [cell.name for cell in read_manifest(folder).cells] == [f"tiny[batch={n}]" for n in (1, 2, 4)]
    again = CliRunner().invoke(main, ["run", "--resume", str(folder), "--preset", "scaling"], obj=FakeCollector())
    assert again.exit_code == 2
    assert "--preset cannot be given" in again.output
