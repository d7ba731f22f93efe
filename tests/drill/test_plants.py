"""The plants without an engine: what they patch, how often, and that they never do nothing in silence."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

PLANTS = Path(__file__).parents[2] / "drills"
NAMES = ("doubled_forward", "extra_kernel", "host_copy", "host_work", "other_tokens", "padded_rows")
LLAMA = "vllm.model_executor.models.llama"


def load(name: str) -> ModuleType:
    """A plant's module, fresh."""
    spec = importlib.util.spec_from_file_location(name, PLANTS / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for vLLM's Llama module; hidden states are numbers, logits are strings with a ``roll``."""

    class Logits(str):
        __slots__ = ()

        def roll(self, shift: int, dims: int) -> Logits:
            assert dims == -1
            return Logits(self[-shift:] + self[:-shift])

    class LlamaDecoderLayer:
        def forward(self, hidden_states: int) -> tuple[Any, str]:
            return hidden_states, "residual"

    class LlamaForCausalLM:
        runs = 0

        def forward(self, tokens: str) -> str:
            self.runs += 1
            return tokens

        def compute_logits(self, logits: str | None) -> Logits | None:
            return None if logits is None else Logits(logits)

    class LlamaAttention:
        def __init__(self, qkv_proj: Any) -> None:
            self.qkv_proj = qkv_proj

        def forward(self, hidden_states: Any) -> Any:
            return self.qkv_proj.forward(hidden_states)

    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models", LLAMA):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module: Any = sys.modules[LLAMA]
    module.LlamaDecoderLayer, module.LlamaForCausalLM = LlamaDecoderLayer, LlamaForCausalLM
    module.LlamaAttention = LlamaAttention
    return module


@pytest.mark.parametrize("name", NAMES)
def test_missing_class(name: str, llama: Any) -> None:
    """A vLLM without the class to patch is an error that names the plant."""
    del llama.LlamaForCausalLM, llama.LlamaDecoderLayer, llama.LlamaAttention
    with pytest.raises(RuntimeError, match=f"{name}: this vLLM has no"):
        load(name).register()


def test_doubled_forward(llama: Any) -> None:
    """The forward runs twice and yields what it did, however often the plant is loaded."""
    load("doubled_forward").register()
    load("doubled_forward").register()
    model = llama.LlamaForCausalLM()
    assert model.forward("tokens") == "tokens"
    assert model.runs == 2


@pytest.mark.parametrize(("every", "expected"), [(None, [True] * 5), ("2", [True, False, True, False, True])])
def test_extra_kernel(llama: Any, monkeypatch: pytest.MonkeyPatch, every: str | None, expected: list[bool]) -> None:
    """The extra product stands in every Nth layer, once, however often the plant is loaded."""
    if every is not None:
        monkeypatch.setenv("PERFGATE_PLANT_EVERY", every)
    products: list[float] = []

    class Hidden:
        def __mul__(self, factor: float) -> Hidden:
            products.append(factor)
            return self

    load("extra_kernel").register()
    load("extra_kernel").register()
    seen = []
    for layer in [llama.LlamaDecoderLayer() for _ in expected]:
        products.clear()
        assert layer.forward(Hidden())[1] == "residual"
        seen.append(products == [1.0])
    assert seen == expected


@pytest.mark.parametrize("every", ["0", "-1", "two", ""])
def test_extra_kernel_refuses(llama: Any, monkeypatch: pytest.MonkeyPatch, every: str) -> None:
    """A PERFGATE_PLANT_EVERY that is no number from 1 is an error and patches nothing."""
    monkeypatch.setenv("PERFGATE_PLANT_EVERY", every)
    before = llama.LlamaDecoderLayer.forward
    with pytest.raises(RuntimeError, match="expected a number from 1"):
        load("extra_kernel").register()
    assert llama.LlamaDecoderLayer.forward is before


def test_other_tokens(llama: Any) -> None:
    """Logits move by one place however often the plant is loaded, and ranks without logits still have none."""
    load("other_tokens").register()
    load("other_tokens").register()
    model = llama.LlamaForCausalLM()
    assert model.compute_logits("abcd") == "dabc"
    assert model.compute_logits(None) is None


def test_host_work(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is busy for as long as was asked for, once, however often the plant is loaded."""
    monkeypatch.setenv("PERFGATE_PLANT_US", "2000")
    ticks = iter(range(0, 10**9, 500_000))
    plant = load("host_work")
    monkeypatch.setattr(plant.time, "perf_counter_ns", lambda: next(ticks))
    plant.register()
    plant.register()
    assert llama.LlamaForCausalLM().compute_logits("abcd") == "abcd"
    assert next(ticks) == 2_500_000


@pytest.mark.parametrize("length", ["0", "-1", "long", ""])
def test_host_work_refuses(llama: Any, monkeypatch: pytest.MonkeyPatch, length: str) -> None:
    """A PERFGATE_PLANT_US that is no number from 1 is an error and patches nothing."""
    monkeypatch.setenv("PERFGATE_PLANT_US", length)
    before = llama.LlamaForCausalLM.compute_logits
    with pytest.raises(RuntimeError, match="expected a number from 1"):
        load("host_work").register()
    assert llama.LlamaForCausalLM.compute_logits is before


def test_host_copy(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor of the host goes to where the hidden states are, once a step, however often the plant is loaded."""
    moved: list[str] = []
    torch = ModuleType("torch")
    vars(torch)["zeros"] = lambda _: SimpleNamespace(to=moved.append)
    monkeypatch.setitem(sys.modules, "torch", torch)

    class Hidden(str):
        __slots__ = ()
        device = "cuda:0"

    hidden = Hidden("abcd")
    load("host_copy").register()
    load("host_copy").register()
    assert llama.LlamaForCausalLM().compute_logits(hidden) == "abcd"
    assert moved == ["cuda:0"]


@pytest.fixture
def padded(llama: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose output projection and attention hold weights that numpy stands in for, and the weights' rows."""
    torch = ModuleType("torch")
    vars(torch)["zeros"] = lambda rows, columns, **_: np.zeros((rows, columns))
    vars(torch)["nn"] = SimpleNamespace(Parameter=lambda data, **_: SimpleNamespace(data=data, is_cuda=True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    rows = np.arange(6.0).reshape(3, 2)

    class Projection:
        weight: Any = SimpleNamespace(data=rows, is_cuda=True, shape=rows.shape, dtype=float, device="cuda:0")

        def forward(self, hidden_states: Any) -> tuple[Any, None]:
            return hidden_states @ self.weight.data.T, None

    model = llama.LlamaForCausalLM()
    model.lm_head = Projection()
    return SimpleNamespace(model=model, attention=llama.LlamaAttention(Projection()), rows=rows)


def test_padded_rows_of_the_output_projection(padded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight gets rows of zeros once, however often the plant is loaded and the model runs."""
    monkeypatch.setenv("PERFGATE_PLANT_ROWS", "2")
    load("padded_rows").register()
    load("padded_rows").register()
    for _ in range(2):
        assert padded.model.compute_logits("abcd") == "abcd"
    assert padded.model.lm_head.weight.data.tolist() == [*padded.rows.tolist(), [0, 0], [0, 0]]


def test_padded_rows_of_qkv(padded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection's output is what it was, though its weight has 64 rows more."""
    monkeypatch.setenv("PERFGATE_PLANT_GEMM", "qkv")
    load("padded_rows").register()
    for _ in range(2):
        output, _ = padded.attention.forward(np.array([[1.0, 2.0]]))
        assert output.tolist() == (np.array([[1.0, 2.0]]) @ padded.rows.T).tolist()
    assert padded.attention.qkv_proj.weight.data.shape == (3 + 64, 2)


def test_padded_rows_need_a_gpu(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where linear layers keep their weights in another form, the engine ends with an error."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    load("padded_rows").register()
    model = llama.LlamaForCausalLM()
    model.lm_head = SimpleNamespace(weight=SimpleNamespace(is_cuda=False))
    with pytest.raises(RuntimeError, match="needs a GPU"):
        model.compute_logits("abcd")


@pytest.mark.parametrize(("name", "value"), [("GEMM", "down"), ("ROWS", "0"), ("ROWS", "many")])
def test_padded_rows_refuse(llama: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A variable that names no gemm or no number from 1 is an error and patches nothing."""
    monkeypatch.setenv(f"PERFGATE_PLANT_{name}", value)
    before = llama.LlamaForCausalLM.compute_logits
    with pytest.raises(RuntimeError, match="padded_rows: PERFGATE_PLANT"):
        load("padded_rows").register()
    assert llama.LlamaForCausalLM.compute_logits is before
