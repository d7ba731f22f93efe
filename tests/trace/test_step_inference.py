"""Steps without ranges: what repeats is found, what is random is not, and what is unclear is said to be."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.trace.assembly import build, named
from perfgate.trace.breakdown import figures
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    NO_TIME,
    NONE,
    STEP_KINDS,
    Calls,
    Events,
    Kernels,
    Steps,
    Trace,
    filled,
)
from perfgate.trace.nsys import read_nsys
from perfgate.trace.selection import select

CAPTURE = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"
MAIN, SIDE = 7, 8
LAYER = ("rms_norm", "gemm_a", "flash_attn", "gemm_b", "act_and_mul", "gemm_c")
HEAD, TAIL = ("prepare", "embedding"), ("rms_norm", "gemm_head", "sampled", "append")


@dataclass
class Script:
    """What a process launches, one call after the other.

    Args:
        kernels: Start, name, call, stream and whether a graph launched it, of each kernel.
        calls: Start and kind of each call.
        now_ns: When the next call is made.
    """

    kernels: list[tuple[int, str, int, int, bool]] = field(default_factory=list, repr=False)
    calls: list[tuple[int, str]] = field(default_factory=list, repr=False)
    now_ns: int = 0

    def launch(self, *names: str, stream: int = MAIN) -> None:
        """One kernel, or a graph with several."""
        kind = "graph-launch" if len(names) > 1 else "launch"
        begin = max(self.now_ns, self.kernels[-1][0] if self.kernels else 0)
        self.kernels += [
            (begin + 10 * place, name, len(self.calls), stream, len(names) > 1) for place, name in enumerate(names, 1)
        ]
        self.calls.append((self.now_ns, kind))
        self.now_ns += 100

    def eager(self, names: Sequence[str]) -> None:
        """Kernels with a call each."""
        for name in names:
            self.launch(name)

    def wait(self) -> None:
        """Wait for the device, once a step."""
        self.calls.append((self.now_ns, "synchronise"))
        self.now_ns += 1000

    def trace(self, *, launches: bool = True) -> Trace:
        """The kernel table of a trace that holds this; without its launching calls if so asked."""
        names = sorted({name for _, name, *_ in self.kernels})
        start, name, call, stream, graph = (np.array(column) for column in zip(*self.kernels, strict=True))
        calls = self.calls if launches else [(at, kind) for at, kind in self.calls if kind == "synchronise"]
        number = [n for n, pair in enumerate(self.calls) if pair in calls] if not launches else range(len(calls))
        empty = filled(Events)
        recorded = Trace(
            source="a script", processes=(9,), devices={}, names=named(tuple(names), (), "script"),
            shapes=np.zeros((1, 6), np.int64), steps=filled(Steps), copies=empty, memsets=empty, overhead=empty,
            cautions=(), where="script",
            kernels=filled(
                Kernels, start_ns=start.astype(np.int64), duration_ns=np.full(len(start), 5), graph=graph,
                name=np.array([names.index(one) for one in name]), shape=np.zeros(len(start)), stream=stream,
                process=np.zeros(len(start)), correlation=call, device=np.zeros(len(start)),
            ),
            calls=filled(
                Calls, start_ns=np.array([at for at, _ in calls], np.int64), duration_ns=np.full(len(calls), 50),
                kind=np.array([CALL_KINDS.index(kind) for _, kind in calls], np.int8),
                process=np.zeros(len(calls)), correlation=np.array(list(number), np.int64),
            ),
        )  # fmt: skip
        return build(recorded, [])


def codes(trace: Trace) -> list[str]:
    """What a trace has to say."""
    return [note.code for note in trace.cautions if "have no place" not in note.text]


def doubted(trace: Trace) -> bool:
    """Whether a caution says that inferred steps may be wrong."""
    return any("may be wrong" in note.text for note in trace.cautions)


def repeated(trace: Trace) -> list[int]:
    """How many kernels each complete step that repeats launched."""
    found = figures(trace)
    launches: list[int] = found.launches[found.complete_of(trace, "repeated")].tolist()
    return launches


def test_the_capture_without_its_ranges(tmp_path: Path) -> None:
    """126 complete decode steps of the H200 capture: its ranges', but for a kernel that begins one in sixteen."""
    file = tmp_path / "export.sqlite"
    file.write_bytes(gzip.decompress(CAPTURE.read_bytes()))
    told = read_nsys(file)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM NVTX_EVENTS")

    trace = read_nsys(file)

    assert select(trace).what == "126 repeated steps"
    assert trace.steps.inferred.all()
    assert not told.steps.inferred.any()
    counts = np.unique(repeated(trace), return_counts=True)
    assert (counts[0].tolist(), counts[1].tolist()) == ([438, 439], [119, 7])
    inside = (told.kernels.step > 1) & (told.kernels.step < len(told.steps) - 1)  # behind the prefill, before the end
    moved = inside & (trace.kernels.step != told.kernels.step)
    assert {trace.names.short[name] for name in trace.kernels.name[moved]} == {"_apply_write_kernel"}
    assert moved.sum() == 7
    assert (trace.kernels.layer == told.kernels.layer).all()
    assert codes(trace)[0] == "steps-unclear"
    assert not doubted(trace)
    assert "128 steps are inferred" in trace.cautions[0].text


@dataclass
class Engine:
    """A drawn engine: a model's layers, what is around them, and how many steps of which sort were traced."""

    script: Script
    decodes: int
    broken: int
    kernels: int
    in_layers: bool


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Decode steps with noise beside and between them, prefills, steps that are missing, and a cut at the beginning.

    The host waits once a step, or in each layer too.
    """
    layers = draw(st.integers(2, 12))
    layer = [f"layer_{n}" for n in [*draw(st.lists(st.integers(0, 9), min_size=3, max_size=9)), 10, 11]]
    head = [f"head_{n}" for n in range(draw(st.integers(1, 5)))]
    tail = [f"tail_{n}" for n in range(draw(st.integers(2, 6)))]
    decode = [*head, *layer * layers, *tail]
    prefill = [*head, *[f"long_{name}" for name in layer] * layers, "more", *tail]
    kinds = draw(st.lists(st.sampled_from(["decode"] * 9 + ["prefill"]), min_size=8, max_size=20))
    noisy = set(draw(st.lists(st.integers(0, 29), max_size=2)))
    in_layers = draw(st.booleans())
    script = Script()
    for number, kind in enumerate(kinds):
        names = list(decode if kind == "decode" else prefill)
        if number in noisy:
            names.insert(draw(st.integers(1, len(names))), "noise")
        if number == 0:
            names = names[draw(st.integers(0, len(names) - 1)) :]
        for name in names:
            script.launch(name)
            if draw(st.integers(0, 60)) == 0:
                script.launch("beside", stream=SIDE)
            if in_layers and name.endswith("layer_10"):
                script.wait()
        script.wait()
    odd = len(noisy) + kinds.count("prefill")
    return Engine(script, kinds.count("decode"), odd, len(decode), in_layers)


@given(engines())
def test_steps_of_an_engine_are_found(engine: Engine) -> None:
    """Where most steps are decode, what repeats is one of them, never a layer or several, whatever is between them."""
    trace = engine.script.trace()
    beside = trace.names.demangled.index("beside") if "beside" in trace.names.demangled else NONE
    main = trace.kernels.take(trace.kernels.name != beside)
    steps = np.bincount(main.step[main.step != NONE], minlength=len(trace.steps))
    whole = steps[trace.steps.complete & (trace.steps.kind == STEP_KINDS.index("repeated"))]
    if not len(trace.steps):  # so few or so uneven that nothing is said
        enough = max(4, 0.6 * (engine.decodes + engine.broken))
        assert engine.in_layers or engine.decodes - 2 * engine.broken < enough
        assert "steps-unclear" in codes(trace)
        return
    assert (np.abs(whole - engine.kernels) <= 0.03 * engine.kernels).all()
    assert engine.decodes - 2 * engine.broken - 2 <= len(whole) <= engine.decodes


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(20, 2000),
    st.floats(0, 3),
    st.sampled_from(["kernels", "graphs", "blocks"]),
)
def test_what_is_random_has_no_steps(
    seed: int,
    alphabet: int,
    length: int,
    skew: float,
    sort: str,
) -> None:
    """Kernels, graphs or blocks of kernels in an order of chance are no steps, however often the host waits."""
    random = np.random.default_rng(seed)
    share = np.arange(1, alphabet + 1) ** -skew
    script = Script()
    for drawn in random.choice(alphabet, length, p=share / share.sum()).tolist():
        if sort == "graphs" and drawn % 3 == 0:
            script.launch(*(f"node_{drawn}_{n}" for n in range(2 + drawn)))
        elif sort == "blocks":
            script.eager([f"kernel_{drawn}_{n}" for n in range(random.integers(1, 4))])
        else:
            script.launch(f"kernel_{drawn}")
        if random.random() < 0.1:
            script.wait()

    trace = script.trace()

    if share.max() / share.sum() < 0.5:
        assert not len(trace.steps)
        assert codes(trace)[0] == "steps-unclear"
    assert not repeated(trace) or doubted(trace)


def test_layers_alone_are_no_steps() -> None:
    """One forward pass repeats its layers; nothing says that they are steps, so they are not, and that is said."""
    script = Script()
    script.eager(HEAD)
    script.eager(LAYER * 32)
    script.eager(TAIL)
    script.wait()

    trace = script.trace()

    assert len(trace.steps) == 0
    (note,) = trace.cautions
    assert (note.code, "what repeats every 6 kernels is a step or a part of one" in note.text) == (
        "steps-unclear",
        True,
    )


LINEAR = ("rms_norm", "gemm_a", "conv", "scan", "gemm_b", "act_and_mul", "gemm_c")
WHOLE = (*HEAD, *LAYER * 8, *TAIL)
REST = ("gemm_b", "act_and_mul", "gemm_c", "rms_norm", "gemm_a")
MADE: dict[str, tuple[Sequence[Sequence[str]], int]] = {
    "a graph with several layers, though nothing else is in the trace": ([WHOLE], 54),
    "graphs between eager attention repeat once a layer": (
        [(*HEAD, "rms_norm", "gemm_a"), *[("flash_attn",), REST] * 12, [*TAIL], []], 4 + 12 * 6 + 4),
    "a draft model proposes three tokens, each by a graph of its own": (
        [WHOLE, *[(*LAYER * 2, "draft_sampled")] * 3, []], 54 + 3 * 13),
    "three layers of one sort and one of another repeat together": (
        [[*HEAD], *[[*LINEAR * 3, *LAYER]] * 12, [*TAIL], []], 2 + 12 * 27 + 4),
}  # fmt: skip
"""By what repeats: a step, in which a tuple is a graph, a list is launched one by one, and nothing is a wait."""


@pytest.mark.parametrize(("parts", "kernels"), MADE.values(), ids=MADE)
def test_a_step_is_neither_a_part_of_one_nor_several(parts: Sequence[Sequence[str]], kernels: int) -> None:
    """The step is what holds all that repeats within it, once."""
    script = Script()
    for _ in range(6):
        for part in parts:
            script.launch(*part) if isinstance(part, tuple) else script.eager(part) if part else script.wait()
    trace = script.trace()
    assert repeated(trace) == [kernels] * 5
    assert codes(trace) == ["steps-unclear"]
    assert ("a CUDA graph of 54 kernels" in trace.cautions[0].text) == (parts[0] == WHOLE)


def test_one_kernel_more_in_a_step_of_sixteen() -> None:
    """Sixteen steps, the last with a kernel more, are sixteen steps and not one."""
    script = Script()
    for number in range(64):
        script.eager([*HEAD, *LAYER * 10, *TAIL, *["more_blocks"] * (number % 16 == 15)])
        script.wait()
    assert sorted(set(repeated(script.trace()))) == [66, 67]


def test_a_trace_of_the_device_alone() -> None:
    """Without launching calls a kernel belongs to the step in which it began."""
    script = Script()
    for _ in range(6):
        script.eager([*HEAD, *LAYER * 8, *TAIL])
        script.wait()
    trace = script.trace(launches=False)
    assert (trace.kernels.launched_ns == NO_TIME).all()
    assert repeated(trace) == [54] * 5


@pytest.mark.parametrize("missing", [0, 3])
def test_what_is_unclear_is_said(missing: int) -> None:
    """Steps of which nothing repeats within, or that leave much out, come with a caution."""
    script = Script()
    for _ in range(8):
        script.eager([*(f"only_{n}" for n in range(11)), "sampled"])
        script.wait()
    script.eager([f"other_{n}" for n in range(100 * missing)])
    trace = script.trace()
    assert len(repeated(trace)) == 7
    text = next(note.text for note in trace.cautions if "may be wrong" in note.text)
    assert "nothing repeats within one" in text
    assert ("they hold only" in text) == bool(missing)


@pytest.mark.parametrize("told", ["", "sampled", "graph"])
@pytest.mark.parametrize("router", [False, True])
def test_a_host_that_waits_in_every_layer(told: str, *, router: bool) -> None:
    """As a mixture of experts does for its routing: a layer is no step, and the step is one where a sampler tells it.

    A router's choice of experts is no sign, as it is in each layer, nor is a graph that holds no layer.
    """
    script = Script()
    for _ in range(8):
        script.eager(HEAD)
        for _ in range(16):
            script.eager(LAYER[:3])
            script.eager(["topk_softmax"] * router)
            script.wait()
            script.eager(["fused_moe_kernel", *LAYER[4:]])
        script.eager(["rms_norm", "gemm_head"])
        if told == "graph":
            script.launch("append", "append")
        elif told:
            script.launch(told)
    trace = script.trace()
    if told != "sampled":
        assert not len(trace.steps)
        assert "though the host waits in each, is a step or a part of one" in trace.cautions[0].text
        return
    assert repeated(trace) == [2 + 16 * (6 + router) + 3] * 7


def test_layers_without_a_kernel_between_steps() -> None:
    """Where a step launches nothing of its own but a norm, what repeats is the layer, and its waits make it no step."""
    script = Script()
    for _ in range(12):
        for _ in range(16):
            script.eager(LAYER)
            script.wait()
        script.launch("rms_norm")
    trace = script.trace()
    assert not len(trace.steps)
    assert codes(trace) == ["steps-unclear"]


@pytest.mark.parametrize("halves", [1, 2])
def test_a_network_without_layers(halves: int) -> None:
    """A hundred kernels that repeat nothing are no layer, nor is half a step: the wait tells the step."""
    script = Script()
    for _ in range(8):
        for half in range(halves):
            script.eager([f"convolve_{n}" for n in range(120)])
            script.eager([f"gradient_{n}" for n in range(30 * half)])
            script.wait()
    trace = script.trace()
    assert repeated(trace) == [120 if halves == 1 else 270] * 7
    assert doubted(trace) == (halves == 1)
