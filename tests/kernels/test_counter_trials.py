"""Which launches are counted: the block's conditions, and the shortest window of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfgate.counters.launch_table import COUNTERS
from perfgate.errors import NotMeasuredError
from perfgate.kernels.launch_window import choose_window, includes, metrics_to_read
from perfgate.scenario.counter_trials import Condition, CounterTrials, Launches
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern, summarise
from perfgate.trace.trace_file import read_trace

TRACE = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"
LAYER = ("norm", "gemm", "attention", "gemm")


def step(layers: int = 3, before: tuple[str, ...] = ("index",), after: tuple[str, ...] = ("sampler",)) -> DecodeSteps:
    """Decode steps whose layers run the same four kernels; what stands around them is outside."""
    roles = [*before, *LAYER * layers, *after]
    keys = tuple(KernelKey(role=role, place="qkv" if role == "gemm" else "", name=f"{role}_kernel")
                 for role in dict.fromkeys(roles))  # fmt: skip
    number = {key.role: n for n, key in enumerate(keys)}
    begins = tuple(len(before) + 4 * n for n in range(layers + 1))
    pattern = Pattern(steps=5, kernels=tuple(number[role] for role in roles), layer_begins=begins)
    zeros = (0,) * 5
    return DecodeSteps(
        source="made up", keys=keys, patterns=(pattern,), step_ns=zeros, span_ns=zeros, busy_ns=zeros, kernel_ns=zeros,
        slack_ns=zeros, work_ns=zeros, call_ns=zeros, gap_ns={}, role_ns={},
        key_launches=(0,) * len(keys), key_ns=(0,) * len(keys),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "begin", "count"),
    [
        ([{"role": "gemm"}], 2, 1),
        ([{"role": "gemm", "profile": 2}], 2, 3),
        ([{"role": "attention"}, {"role": "norm"}], 3, 3),  # norm, gemm, attention is as short, and comes first
        ([{"role": "sampler"}, {"role": "index"}], 13, 2),  # from the end of a step into the next one
        ([{"profile": "layer"}], 1, 4),
        ([{"profile": "layer"}, {"profile": "outside"}], 9, 6),
        ([{"role": "gemm", "profile": "layer"}], 2, 3),
        ([{"role": "gemm", "layer": 1}], 6, 1),
        ([{"profile": "layer", "layer": 2}], 9, 4),
        ([{"match": "^attention_", "profile": 3}], 3, 9),
        ([{"profile": 14}], 0, 14),
    ],
)
def test_the_shortest_window_that_holds_all(asked: list[dict[str, object]], begin: int, count: int) -> None:
    """Of all runs of launches that hold what is asked for the shortest is chosen, of several the first."""
    window = choose_window(step(), [Launches.model_validate(one) for one in asked])

    if asked == [{"role": "attention"}, {"role": "norm"}]:
        begin, count = 1, 3
    assert (window.begin, window.count) == (begin, count)
    assert window.positions == tuple((begin + n) % 14 for n in range(count))


@given(
    st.integers(1, 6),
    st.lists(
        st.builds(
            lambda role, profile: Launches(role=role, profile=profile),
            st.sampled_from(["norm", "gemm", "attention", "index", "sampler", None]),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_window_holds_what_it_was_chosen_for(layers: int, asked: list[Launches]) -> None:
    """Every entry finds its launches in the window, and no window that is one launch shorter would hold them all."""
    steps = step(layers)
    keys = [steps.keys[kernel] for kernel in steps.patterns[0].kernels]

    def holds(begin: int, count: int) -> bool:
        inside = {(begin + n) % len(keys) for n in range(count)}
        return all(sum(includes(one, keys[n], None) for n in inside) >= int(one.profile) for one in asked)

    if not holds(0, len(keys)):
        with pytest.raises(NotMeasuredError) as caught:
            choose_window(steps, asked)
        assert caught.value.code == "counters-not-countable"
        return
    window = choose_window(steps, asked)
    assert holds(window.begin, window.count)
    assert not any(holds(begin, window.count - 1) for begin in range(len(keys)))


def test_layers_of_a_real_step() -> None:
    """An H200's decode step of Llama 8B: one of 32 layers of 13 launches, and 22 launches outside, in a row."""
    decode = summarise(read_trace(TRACE))

    window = choose_window(decode, [Launches(profile="layer"), Launches(profile="outside")])

    pattern = decode.patterns[0]
    layers = [pattern.layers()[n] for n in window.positions]
    assert window.count == 13 + 22
    assert (layers.count(None), layers.count(31)) == (22, 13)
    assert [decode.keys[pattern.kernels[n]].place for n in window.positions if layers.count(None)].count("lm-head") == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"role": "moe"}, "has 0 launches of moe, 1 are to be counted"),
        ({"role": "sampler", "profile": 2}, "has 1 launches of sampler, 2 are to be counted"),
        ({"role": "sampler", "profile": "layer"}, "has 0 launches of sampler in a layer"),
        ({"role": "norm", "profile": "outside"}, "has 0 launches of norm outside the layers"),
        ({"role": "norm", "layer": 3}, "has 0 launches of norm of layer 3, 1 are to be counted"),
    ],
)
def test_what_the_step_does_not_run(asked: dict[str, object], words: str) -> None:
    """Launches that the traced step does not have cannot be counted, and the error says how many it has."""
    with pytest.raises(NotMeasuredError, match=words) as caught:
        choose_window(step(), [Launches.model_validate(asked)])
    assert caught.value.code == "counters-not-countable"


@pytest.mark.parametrize("text", ["same", ">= 60", "<= 0.5", "<=1e9", ">= 60%"])
def test_a_condition_reads_back(text: str) -> None:
    """What a scenario says and what perfgate writes of it mean the same."""
    first = Launches.model_validate({"metrics": {"spills": text}}).metrics["spills"]
    assert Launches.model_validate({"metrics": {"spills": str(first)}}).metrics["spills"] == first


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"metrics": {"dram_bytes": "same"}}, "only counters that repeat exactly"),
        ({"metrics": {"dram__bytes.sum": "same"}}, "only counters that repeat exactly"),
        ({"metrics": {"registers": "about 60"}}, 'expected "same", or a bound'),
        ({"metrics": {"registers": 60}}, 'expected "same", or a bound'),
        ({"metrics": {"register": "same"}}, "did you mean 'registers'"),
        ({"place": "kqv"}, "expected one of qkv, out"),
        ({"match": "("}, "invalid regular expression"),
        ({"match": "[[a]"}, "invalid regular expression: Possible nested set"),
        ({"match": "(a)(?(+1)b)"}, "invalid regular expression: bad character in group name"),
        ({"match": "a{99999999999999999999}"}, "invalid regular expression: the repetition number is too large"),
        ({"match": f"{'(' * 5000}a{')' * 5000}"}, "invalid regular expression: maximum recursion depth exceeded"),
        ({"profile": 0}, "greater than or equal to 1"),
        ({"profile": "outside", "layer": 1}, "exclude each other"),
        ({"profile": "layers"}, "'layer' or 'outside'"),
    ],
)
def test_what_cannot_be_asked(block: dict[str, object], words: str) -> None:
    """A block that means nothing is refused in words that say what would."""
    with pytest.raises(ValidationError, match=words):
        Launches.model_validate(block)


def test_names_are_those_of_the_architecture() -> None:
    """Each counter is asked for once, by the name that its architecture has; bounds and gates add theirs."""
    entry = Launches(metrics={"registers": Condition("same"), "sm__cycles_active.avg": Condition(">=", 1)})
    few = CounterTrials(collect=("dram_read",))

    assert metrics_to_read([entry], few, 90, ["instructions"]) == (
        "dram__bytes_read.sum", "launch__registers_per_thread", "sm__cycles_active.avg", "smsp__inst_executed.sum",
    )  # fmt: skip
    assert metrics_to_read([], few, 120) == ("dram__bytes_op_read.sum",)
    usual = CounterTrials()
    assert metrics_to_read([], usual, 120) == (
        "launch__registers_per_thread",
        "launch__waves_per_multiprocessor",
    )
    assert "sm__ops_path_tensor_src_bf16_dst_fp32.sum" not in metrics_to_read(
        [], CounterTrials(), 80
    )  # not verified there
    assert len(metrics_to_read([], usual, 90)) == len(COUNTERS)
