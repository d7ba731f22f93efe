"""Layers and places found in a step's kernel sequence, for models of several makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import ExportBuilder

from perfgate.scenario.kernel_names import PLACES
from perfgate.trace.families import classify
from perfgate.trace.kernel_table import NONE, Kernels, Names, filled
from perfgate.trace.layers import assign_layers
from perfgate.trace.nsys import read_nsys

HEAD = ["_prepare_inputs", "indexSelectSmallIndex"]
TAIL = ["vllm::fused_add_rms_norm_kernel", "nvjet_lm_head", "_gumbel_sample_kernel"]
DENSE = [
    "vllm::fused_add_rms_norm_kernel", "nvjet_a", "vllm::rotary_embedding_kernel", "reshape_and_cache_flash_kernel",
    "flash::fwd", "flash::combine", "nvjet_b", "cublasLt::splitKreduce_kernel", "vllm::fused_add_rms_norm_kernel",
    "nvjet_c", "act_and_mul_kernel", "nvjet_b",
]  # fmt: skip
PLACED = ["", "qkv", "", "", "", "", "out", "out", "", "gate-up", "", "down"]


def layers_of(sequence: list[str], streams: list[int] | None = None) -> tuple[list[int], list[str]]:
    """Layer and place of each kernel of one step, by its names in order."""
    distinct = sorted(set(sequence))
    names = Names(tuple(distinct), tuple(distinct), tuple(distinct), classify(distinct))
    count = len(sequence)
    kernels = filled(
        Kernels,
        start_ns=np.arange(count),
        name=np.array([distinct.index(name) for name in sequence]),
        stream=np.array(streams or [7] * count),
        device=np.zeros(count),
        step=np.zeros(count),
    )
    layer, place = assign_layers(kernels, names, None)
    return layer.tolist(), [PLACES[number] for number in place]


@pytest.mark.parametrize("count", [2, 3, 32, 80])
def test_dense_layers(count: int) -> None:
    """Every layer begins at its norm and has its four gemms; two share a name, and the first layer has another norm."""
    first = ["vllm::rms_norm_kernel", *DENSE[1:]]
    layer, place = layers_of([*HEAD, *first, *DENSE * (count - 1), *TAIL])
    assert layer == [NONE, NONE, *np.repeat(np.arange(count), len(DENSE)).tolist(), NONE, NONE, NONE]
    assert place == ["", "", *PLACED * count, "", "lm-head", ""]


@pytest.mark.parametrize("at", [1, 4, 8, 11])
def test_an_extra_kernel_in_every_fourth_layer(at: int) -> None:
    """A kernel that only some layers run neither moves the numbers of the others nor hides the gemms."""
    extra = [*DENSE[:at], "vectorized_elementwise_kernel", *DENSE[at:]]
    layer, place = layers_of([*HEAD, *(extra + DENSE * 3) * 4, *TAIL])
    for n in range(16):
        assert [place[row] for row in range(len(layer)) if layer[row] == n and place[row]] == [p for p in PLACED if p]
    assert max(layer) == 15
    assert place.count("lm-head") == 1


def test_dense_layers_before_mixtures_of_experts() -> None:
    """All layers are numbered, those with an MLP and those with experts; experts have no place."""
    experts = [*DENSE[:9], "topkGatingSoftmax", "fused_moe_kernel", "act_and_mul_kernel", "fused_moe_kernel"]
    layer, place = layers_of([*HEAD, *DENSE * 3, *experts * 10, *TAIL])
    assert sorted(set(layer)) == list(range(-1, 13))
    assert [layer.count(n) for n in range(13)] == [12] * 3 + [13] * 10
    assert [place.count(word) for word in ("qkv", "gate-up", "down")] == [13, 3, 3]


MLA = [
    "vllm::fused_add_rms_norm_kernel", "nvjet_qkv_a", "vllm::rms_norm_kernel", "nvjet_q_b", "nvjet_absorb_k",
    "vllm::rotary_embedding_kernel", "concat_and_cache_mla_kernel", "FlashMLA_fwd", "FlashMLA_combine",
    "nvjet_absorb_v", "nvjet_o", "vllm::fused_add_rms_norm_kernel", "nvjet_c", "act_and_mul_kernel", "nvjet_b",
]  # fmt: skip
ROUTED = [
    *DENSE[:9],
    "nvjet_router",
    "topk_softmax_sampling",
    "fused_moe_kernel",
    "act_and_mul_kernel",
    "fused_moe_kernel",
]
LINEAR = ["vllm::fused_add_rms_norm_kernel", "nvjet_in", "delta_rule_fwd", "nvjet_out", *DENSE[8:]]
CROSS = [*DENSE[:7], "nvjet_q", "flash::cross", "nvjet_o", *DENSE[8:]]
FUSED_WRITE = [name for name in DENSE if "cache" not in name and "combine" not in name]
OTHER_KERNEL = ["flash::windowed" if name == "flash::fwd" else name for name in FUSED_WRITE]


DENSE_PLACES = [("nvjet_a", "qkv"), ("nvjet_b", "out"), ("nvjet_c", "gate-up"), ("nvjet_b", "down")]


@pytest.mark.parametrize(
    ("block", "places"),
    [
        (MLA, []),
        (ROUTED, DENSE_PLACES[:2]),
        ([*LINEAR * 3, *DENSE], DENSE_PLACES),
        ([*DENSE, *LINEAR * 3], DENSE_PLACES),
        (CROSS, []),
        ([*OTHER_KERNEL, *FUSED_WRITE], [*DENSE_PLACES, *DENSE_PLACES]),
    ],
    ids=[
        "latent attention",
        "router",
        "hybrid, attention last",
        "hybrid, attention first",
        "two attentions",
        "windows",
    ],
)
def test_gemms_in_another_order_have_no_place(block: list[str], places: list[tuple[str, str]]) -> None:
    """A place is given where a layer's order tells it, else none: a router is no gate-up."""
    sequence = [*HEAD, *block * 6, *TAIL]
    _, place = layers_of(sequence)
    found = [(name, word) for name, word in zip(sequence, place, strict=True) if word and "splitK" not in name]
    assert [pair for pair in found if pair[1] != "lm-head"] == places * 6
    assert [name for name, word in found if word == "lm-head"] in ([], ["nvjet_lm_head"])


def test_a_draft_model_behind_the_model() -> None:
    """Its layer is not the model's, and the gemms around it have no place; the model's keep theirs."""
    draft = ["nvjet_fc", *DENSE, *TAIL]
    layer, place = layers_of([*HEAD, *DENSE * 8, *TAIL, *draft])
    own = len(HEAD) + 8 * len(DENSE)
    assert [place.count(word) for word in ("qkv", "out", "gate-up", "down", "lm-head")] == [8, 16, 8, 8, 1]
    assert layer[own:] == [NONE] * (len(TAIL) + len(draft))
    assert place.index("lm-head") == own + 1


def test_a_gemm_without_a_place_is_said(tmp_path: Path) -> None:
    """A caution counts the gemms of steps with layers that have no place."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 1000)
    for n, name in enumerate([*MLA * 3, *TAIL]):
        builder.launch(name, n, 2000 + 10 * n, 2005 + 10 * n)
    builder.launch("nvjet_elsewhere", 5000, 6000, 6001)
    (caution,) = read_nsys(builder.write(tmp_path / "export.sqlite")).cautions
    assert caution.code == "steps-unclear"
    assert caution.text.startswith("21 of 22 gemms have no place")


def test_a_norm_fused_into_a_gemm() -> None:
    """Without a norm between them the second gemm after attention is gate-up."""
    fused = [name for n, name in enumerate(DENSE) if n != 8]
    _, place = layers_of([*HEAD, *fused * 4, *TAIL])
    assert place[2 : 2 + len(fused)] == [word for n, word in enumerate(PLACED) if n != 8]


@pytest.mark.parametrize("left", [len(DENSE), 10])
def test_an_activation_fused_into_a_gemm(left: int) -> None:
    """Three gemms after attention are out, gate-up and down also where no activation runs between them."""
    fused = [name for name in DENSE if name != "act_and_mul_kernel"]
    _, place = layers_of([*HEAD, *fused * 4, *fused[:left]])
    placed = [word for name, word in zip(DENSE, PLACED, strict=True) if name != "act_and_mul_kernel"]
    assert place == ["", "", *placed * 4, *placed[:left]]


def test_kernels_of_a_side_stream() -> None:
    """A kernel beside the main stream goes with the layer whose kernels run around it."""
    block = [*DENSE[:6], "shared_expert_gemm", *DENSE[6:]]
    streams = [7] * 6 + [13] + [7] * 6
    layer, _ = layers_of([*HEAD, *block * 5, *TAIL], [7, 7, *streams * 5, 7, 7, 7])
    assert layer[2:-3] == np.repeat(np.arange(5), len(block)).tolist()


def test_a_model_without_attention() -> None:
    """Without a kernel known to run once a layer, the number of launches that most kernels share is that of layers."""
    block = ["conv_update", "scan_fwd", "gate", "conv_update"]
    layer, _ = layers_of(["embed", *block * 6, "head"])
    assert sorted(set(layer)) == list(range(-1, 6))
    assert layer[0] == layer[-1] == NONE


@pytest.mark.parametrize("sequence", [[], ["one"], ["one", "two", "three"], [*HEAD, *DENSE, *TAIL]])
def test_nothing_repeats(sequence: list[str]) -> None:
    """Where nothing runs once a layer there are no layers, and no gemm has a place."""
    if sequence[2:3] == DENSE[:1]:
        sequence = [name for n, name in enumerate(sequence) if name not in sequence[:n]]
    layer, place = layers_of(sequence)
    assert set(layer) <= {NONE}
    assert not any(place)


@given(
    st.lists(st.sampled_from([*DENSE, "x", "y"]), max_size=60), st.lists(st.integers(1, 2), min_size=60, max_size=60)
)
def test_any_sequence(sequence: list[str], streams: list[int]) -> None:
    """Whatever runs, layers are numbered from 0 without a hole and never go backwards, and only gemms have places."""
    layer, place = layers_of(sequence, streams[: len(sequence)])
    inside = [number for number in layer if number != NONE]
    assert inside == sorted(inside)
    assert sorted(set(inside)) == list(range(len(set(inside))))
    roles = classify(sequence)
    assert all(role in ("gemm", "gemm-reduce") for role, word in zip(roles, place, strict=True) if word)
