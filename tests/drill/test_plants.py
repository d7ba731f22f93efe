"""The plants without an engine: what they patch, how often, and that they never do nothing in silence."""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfgate.drill.plants import load_catalogue

PLANTS = Path(__file__).parents[2] / "drills"
PLUGINS = [plant for plant in load_catalogue(PLANTS) if plant.path]
NAMES = [plant.name for plant in PLUGINS]
NUMBERED = [(plant.name, plant.dial.variable) for plant in PLUGINS if plant.dial and plant.dial.variable]
LLAMA = "vllm.model_executor.models.llama"
SCHEDULER = "vllm.v1.core.sched.scheduler"
EXECUTOR = "vllm.v1.executor.abstract"


def load(name: str) -> ModuleType:
    """A plant's module, fresh."""
    spec = importlib.util.spec_from_file_location(name, PLANTS / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """An empty module of that name, importable, in packages that are as empty."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            module = ModuleType(path)
            monkeypatch.setitem(sys.modules, path, module)
            if end > 1:
                monkeypatch.setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module, raising=False)
    return sys.modules[name]


class Logits(str):
    """Logits are strings with a ``roll``."""

    __slots__ = ()

    def roll(self, shift: int, dims: int) -> Logits:
        """As of a tensor."""
        assert dims == -1
        return Logits(self[-shift:] + self[:-shift])


@dataclass
class Drafts:
    """The drafts of some requests."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


class Scheduler:
    """A scheduler of two requests."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 70),
                                           scheduler_config=SimpleNamespace(async_scheduling=False))  # fmt: skip
        self.num_spec_tokens = 3
        self.requests = {name: SimpleNamespace(all_token_ids=[5, last]) for name, last in (("a", 0), ("b", 9))}

    def schedule(self, throttle: bool = False) -> tuple[str, bool]:  # noqa: FBT001, FBT002 (as vLLM's)
        """Schedule what there is."""
        return "scheduled", throttle

    def get_grammar_bitmask(self, output: Any) -> tuple[str, int]:
        """No request has a grammar."""
        return "no mask", len(output.num_scheduled_tokens)

    def update_draft_token_ids(self, drafts: Drafts) -> list[list[int]]:
        """Take the drafts."""
        return drafts.draft_token_ids

    def _free_request(self, request: str, delay_free_blocks: bool = False) -> tuple[str, bool]:  # noqa: FBT001, FBT002 (as vLLM's)
        """Forget a finished request."""
        return f"freed {request}", delay_free_blocks


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for vLLM's Llama module; hidden states are numbers or strings."""

    class LlamaDecoderLayer:
        def parameters(self) -> list[Any]:
            return [np.ones(2), np.ones(3)]

        def forward(self, hidden_states: Any) -> tuple[Any, str]:
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

    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    module = stand_in(monkeypatch, LLAMA)
    module.LlamaDecoderLayer, module.LlamaForCausalLM = LlamaDecoderLayer, LlamaForCausalLM
    module.LlamaAttention = LlamaAttention
    return module


@pytest.fixture
def engine(llama: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for everything of vLLM that plants patch."""

    class Executor:
        def determine_available_memory(self) -> list[int]:
            return [1000, 100]

    class OwnScheduler(Scheduler):
        __init__ = Scheduler.__init__
        schedule = Scheduler.schedule
        get_grammar_bitmask = Scheduler.get_grammar_bitmask
        update_draft_token_ids = Scheduler.update_draft_token_ids
        _free_request = Scheduler._free_request

    found = SimpleNamespace(llama=llama, Executor=Executor, Scheduler=OwnScheduler,
                            cache=stand_in(monkeypatch, "vllm.v1.core.kv_cache_utils"),
                            distributed=stand_in(monkeypatch, "vllm.distributed"))  # fmt: skip
    stand_in(monkeypatch, SCHEDULER).Scheduler = OwnScheduler
    stand_in(monkeypatch, EXECUTOR).Executor = Executor
    found.cache.hash_block_tokens = lambda *block: ("hash", *block)
    found.distributed.get_tensor_model_parallel_world_size = lambda: 2
    found.distributed.tensor_model_parallel_all_reduce = lambda hidden: hidden
    return found


def patched(engine: Any) -> dict[str, Any]:
    """Everything that a plant could have patched."""
    classes = (*vars(engine.llama).values(), engine.Executor, engine.Scheduler)
    found = {f"{one.__name__}.{name}": value for one in classes if isinstance(one, type)
             for name, value in vars(one).items()}  # fmt: skip
    return found | {"hash": engine.cache.hash_block_tokens}


@pytest.mark.parametrize("name", NAMES)
def test_missing_class(name: str, llama: Any) -> None:
    """A vLLM without the class to patch is an error that names the plant."""
    del llama.LlamaForCausalLM, llama.LlamaDecoderLayer, llama.LlamaAttention
    with pytest.raises(RuntimeError, match=f"{name}: this vLLM has no"):
        load(name).register()


@pytest.mark.parametrize("name", NAMES)
def test_loaded_twice(name: str, engine: Any) -> None:
    """A plant patches something, and nothing more when vLLM loads it again in the same process."""
    before = patched(engine)
    load(name).register()
    once = patched(engine)
    load(name).register()
    assert once != before
    assert patched(engine) == once


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "nan", "inf"])
@pytest.mark.parametrize(("name", "variable"), NUMBERED)
def test_a_size_that_is_no_number(
    name: str, variable: str, value: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that holds no size is an error and patches nothing; only layers may be apart by a fraction."""
    monkeypatch.setenv(variable, value)
    before = patched(engine)
    expected = "above 0" if name == "extra_kernel" else "from 1"
    with pytest.raises(RuntimeError, match=f"{name}: {variable}={value!r}, expected a number {expected}"):
        load(name).register()
    assert patched(engine) == before


def test_doubled_forward(llama: Any) -> None:
    """The forward runs twice and yields what it did."""
    load("doubled_forward").register()
    model = llama.LlamaForCausalLM()
    assert model.forward("tokens") == "tokens"
    assert model.runs == 2


@pytest.mark.parametrize(
    ("every", "expected"), [(None, [1] * 5), ("2", [1, 0, 1, 0, 1]), ("1.5", [1, 0, 1, 1, 0]), ("0.4", [3, 2, 3, 2, 3])]
)
def test_extra_kernel(llama: Any, monkeypatch: pytest.MonkeyPatch, every: str | None, expected: list[int]) -> None:
    """So many extra products come to the layers as ``PERFGATE_PLANT_EVERY`` says."""
    if every is not None:
        monkeypatch.setenv("PERFGATE_PLANT_EVERY", every)
    products: list[float] = []

    class Hidden:
        def __mul__(self, factor: float) -> Hidden:
            products.append(factor)
            return self

    load("extra_kernel").register()
    seen = []
    for layer in [llama.LlamaDecoderLayer() for _ in expected]:
        products.clear()
        assert layer.forward(Hidden())[1] == "residual"
        seen.append(len(products))
    assert seen == expected


def test_other_tokens(llama: Any) -> None:
    """Logits move by one place however often the plant is loaded, and ranks without logits still have none."""
    load("other_tokens").register()
    model = llama.LlamaForCausalLM()
    assert model.compute_logits("abcd") == "dabc"
    assert model.compute_logits(None) is None


def test_host_work(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is busy for as long as was asked for, once."""
    monkeypatch.setenv("PERFGATE_PLANT_US", "2000")
    ticks = iter(range(0, 10**9, 500_000))
    plant = load("host_work")
    monkeypatch.setattr(plant.time, "perf_counter_ns", lambda: next(ticks))
    plant.register()
    assert llama.LlamaForCausalLM().compute_logits("abcd") == "abcd"
    assert next(ticks) == 2_500_000


def test_host_copy(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor of the host goes to where the hidden states are, once a step."""
    moved: list[str] = []
    torch = ModuleType("torch")
    vars(torch)["zeros"] = lambda _: SimpleNamespace(to=moved.append)
    monkeypatch.setitem(sys.modules, "torch", torch)

    class Hidden(str):
        __slots__ = ()
        device = "cuda:0"

    hidden = Hidden("abcd")
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
    """The weight gets rows of zeros once, however often the model runs."""
    monkeypatch.setenv("PERFGATE_PLANT_ROWS", "2")
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


def test_doubled_attention(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention of every second layer runs twice, for one result."""
    monkeypatch.setenv("PERFGATE_PLANT_EVERY", "2")
    runs: list[int] = []
    built: list[Any] = []

    def construct(self: Any) -> None:
        number = len(built)
        built.append(self)

        def forward(query: str) -> str:
            runs.append(number)
            return query

        self.attn = SimpleNamespace(forward=forward)

    engine.llama.LlamaAttention.__init__ = construct
    load("doubled_attention").register()
    for _ in range(3):
        assert engine.llama.LlamaAttention().attn.forward("query") == "query"
    assert runs == [0, 0, 1, 2, 2]


def test_doubled_attention_without_attention(engine: Any) -> None:
    """A layer that has no ``attn`` ends the engine."""
    load("doubled_attention").register()
    with pytest.raises(RuntimeError, match="has no attn"):
        engine.llama.LlamaAttention("qkv")


def test_zeroed_workspace(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes are set to zero where the hidden states are, once a layer."""
    made: list[Any] = []
    torch = stand_in(monkeypatch, "torch")
    torch.uint8, torch.zeros = "uint8", lambda size, **how: made.append((size, how))
    monkeypatch.setenv("PERFGATE_PLANT_MIB", "2")
    load("zeroed_workspace").register()
    hidden = SimpleNamespace(device="cuda:0")
    assert engine.llama.LlamaDecoderLayer().forward(hidden) == (hidden, "residual")
    assert made == [(2 << 20, {"dtype": "uint8", "device": "cuda:0"})]


def test_smaller_kv_cache(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker's memory is smaller by the share."""
    monkeypatch.setenv("PERFGATE_PLANT_PERCENT", "5")
    load("smaller_kv_cache").register()
    assert engine.Executor().determine_available_memory() == [950, 95]


def test_kept_weights(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second layer holds a copy of each of its weights."""
    monkeypatch.setenv("PERFGATE_PLANT_EVERY", "2")
    weight = SimpleNamespace(detach=lambda: SimpleNamespace(clone=lambda: "copy"))
    engine.llama.LlamaDecoderLayer.parameters = lambda _: [weight, weight]
    load("kept_weights").register()
    layers = [engine.llama.LlamaDecoderLayer() for _ in range(3)]
    assert [getattr(layer, "perfgate_kept", None) for layer in layers] == [["copy"] * 2, None, ["copy"] * 2]


@pytest.mark.parametrize(("cuda", "device"), [(False, "cpu"), (True, "cuda")])
def test_kept_requests(cuda: bool, device: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 (a value of the table)
    """Each finished request keeps so much memory on the engine's device, and is freed as before."""
    monkeypatch.setenv("PERFGATE_PLANT_KIB", "2")
    made: list[Any] = []
    torch = stand_in(monkeypatch, "torch")
    torch.uint8, torch.ones = "uint8", lambda size, **how: made.append((size, how))
    torch.cuda = SimpleNamespace(is_initialized=lambda: cuda)
    load("kept_requests").register()
    scheduler = engine.Scheduler()
    freed = [scheduler._free_request("a"), scheduler._free_request("b", delay_free_blocks=True)]
    assert freed == [("freed a", False), ("freed b", True)]
    assert made == [(2048, {"dtype": "uint8", "device": device})] * 2


def test_rejected_drafts(engine: Any) -> None:
    """Each request gets a full row of drafts, of a token that is not its last."""
    load("rejected_drafts").register()
    proposed = Drafts(["a", "b", "gone"], [[], [4, 4], []])
    assert engine.Scheduler().update_draft_token_ids(proposed) == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("drafts", "asynchronous"), [(0, False), (3, True)])
def test_rejected_drafts_need_drafts(drafts: int, asynchronous: bool, engine: Any) -> None:  # noqa: FBT001 (a value of the table)
    """Without drafts, or where the scheduler is not told them, the engine ends with an error."""

    def construct(self: Any) -> None:
        self.num_spec_tokens = drafts
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous))

    engine.Scheduler.__init__ = construct
    load("rejected_drafts").register()
    with pytest.raises(RuntimeError, match="rejected_drafts: needs speculative_config"):
        engine.Scheduler()


def test_hashed_blocks(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is hashed so many times more, for the same hash."""
    monkeypatch.setenv("PERFGATE_PLANT_TIMES", "3")
    hashed: list[Any] = []

    def hash_block(*block: Any) -> str:
        hashed.append(block)
        return "hash"

    engine.cache.hash_block_tokens = hash_block
    load("hashed_blocks").register()
    assert engine.cache.hash_block_tokens("parent", (1, 2)) == "hash"
    assert hashed == [("parent", (1, 2))] * 4


def test_grammar_bitmask(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of a bit for each token is built for each request, so many times; what vLLM returns stays the same."""
    monkeypatch.setenv("PERFGATE_PLANT_PASSES", "2")
    plant = load("grammar_bitmask")
    assert [len(mask) for mask in plant.build_masks(2, 70)] == [3, 3]
    built: list[Any] = []
    monkeypatch.setattr(plant, "build_masks", lambda *size: built.append(size))
    plant.register()
    output = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 1})
    assert engine.Scheduler().get_grammar_bitmask(output) == ("no mask", 2)
    assert built == [(2, 70), (2, 70)]


def test_penalty_lists(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are listed for each row, copied and counted; the logits stay the same."""
    copied: list[Any] = []

    class Tensor(np.ndarray[Any, Any]):
        @property
        def device(self) -> Any:
            return "cuda:0"

        def to(self, device: str) -> Tensor:
            copied.append((self.shape, device))
            return self

        def scatter_add_(self, dim: int, index: Any, values: Any) -> Tensor:
            assert dim == 1
            np.add.at(self, (np.arange(len(index))[:, None], index), values)
            assert self.sum() == 3 * 4
            return self

    torch = stand_in(monkeypatch, "torch")
    torch.int64, torch.zeros_like, torch.ones_like = np.int64, np.zeros_like, np.ones_like
    torch.tensor = lambda rows, dtype: np.array(rows, dtype=dtype).view(Tensor)
    logits = np.array([[1.0, -np.inf], [2.0, 3.0], [4.0, 5.0]]).view(Tensor)
    engine.llama.LlamaForCausalLM.compute_logits = lambda _, hidden: None if hidden is None else logits
    monkeypatch.setenv("PERFGATE_PLANT_TOKENS", "4")
    load("penalty_lists").register()
    model = engine.llama.LlamaForCausalLM()
    assert model.compute_logits("hidden").tolist() == logits.tolist()
    assert copied == [((3, 4), "cuda:0")]
    assert model.compute_logits(None) is None


def test_slow_start(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many functions are compiled, each another, when a model is built."""
    monkeypatch.setenv("PERFGATE_PLANT_FUNCTIONS", "3")
    plant = load("slow_start")
    compiled: list[str] = []
    monkeypatch.setattr(plant, "compile", lambda text, *_: compiled.append(compile(text, "x", "exec").co_names[0]),
                        raising=False)  # fmt: skip
    plant.register()
    assert compiled == []
    engine.llama.LlamaForCausalLM()
    assert compiled == ["kernel_0", "kernel_1", "kernel_2"]


def test_device_read(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many values are read from the hidden states on a GPU; on the CPU there is nothing to wait for: an error."""
    monkeypatch.setenv("PERFGATE_PLANT_READS", "2")
    read: list[Any] = []

    class Hidden(str):
        __slots__ = ()
        is_cuda = True

        def __getitem__(self, place: Any) -> Any:
            return SimpleNamespace(item=lambda: read.append(place))

    load("device_read").register()
    hidden = Hidden("abcd")
    assert engine.llama.LlamaForCausalLM().compute_logits(hidden) == "abcd"
    assert read == [(0, 0), (0, 0)]
    monkeypatch.setattr(Hidden, "is_cuda", False)
    with pytest.raises(RuntimeError, match="device_read: needs a GPU"):
        engine.llama.LlamaForCausalLM().compute_logits(hidden)


def test_collected_garbage(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many collections come before a step is scheduled."""
    monkeypatch.setenv("PERFGATE_PLANT_COLLECTIONS", "2")
    plant = load("collected_garbage")
    collections: list[int] = []
    monkeypatch.setattr(plant, "gc", SimpleNamespace(collect=lambda: collections.append(1)))
    plant.register()
    assert engine.Scheduler().schedule(throttle=True) == ("scheduled", True)
    assert collections == [1, 1]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False)])
def test_adapter_copies(device: str, pinned: bool, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 (a value of the table)
    """The same bytes are copied in each step, from memory that is pinned where there is a GPU."""
    made: list[Any] = []
    copied: list[Any] = []
    place = SimpleNamespace(type=device)
    torch = stand_in(monkeypatch, "torch")
    torch.uint8 = "uint8"

    def ones(size: int, **how: Any) -> str:
        made.append((size, how["device"], how["pin_memory"]))
        return "source"

    def empty(size: int, **how: Any) -> Any:
        made.append((size, how["device"]))
        return SimpleNamespace(copy_=lambda source, **how: copied.append((source, how)))

    torch.ones, torch.empty = ones, empty

    class Hidden(str):
        __slots__ = ()
        device = place

    monkeypatch.setenv("PERFGATE_PLANT_MIB", "2")
    load("adapter_copies").register()
    model = engine.llama.LlamaForCausalLM()
    for _ in range(2):
        assert model.compute_logits(Hidden("abcd")) == "abcd"
    assert made == [(2 << 20, "cpu", pinned), (2 << 20, place)]
    assert copied == [("source", {"non_blocking": True})] * 2


def calls(function: Any) -> list[str]:
    """The calls that a function's own body makes."""
    return [one.opname for one in dis.get_instructions(function) if one.opname.startswith("CALL")]


def test_host_loop(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function does what it did, has its old name, place and calls, and a loop in its own body."""
    monkeypatch.setenv("PERFGATE_PLANT_LOOPS", "3")
    before = Scheduler.schedule
    load("host_loop").register()
    made = engine.Scheduler.schedule
    assert made is not before
    assert (engine.Scheduler().schedule(), engine.Scheduler().schedule(throttle=True)) == (
        ("scheduled", False), ("scheduled", True),
    )  # fmt: skip
    named = ("__name__", "__qualname__", "__doc__", "__module__", "__defaults__", "__annotations__")
    assert [getattr(made, name) for name in named] == [getattr(before, name) for name in named]
    assert (made.__code__.co_filename, made.__code__.co_firstlineno) == (
        before.__code__.co_filename, before.__code__.co_firstlineno,
    )  # fmt: skip
    assert calls(made) == calls(before)
    assert "_perfgate_left" in made.__code__.co_varnames
    left = [one.argval for one in dis.get_instructions(made) if one.opname == "LOAD_CONST"]
    assert 3 in left


def test_host_loop_counts_as_often_as_asked(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    """Lines of the loop run once for each count."""
    monkeypatch.setenv("PERFGATE_PLANT_LOOPS", "5")
    load("host_loop").register()
    counts: list[int] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and "_perfgate_left" in frame.f_locals:
            counts.append(frame.f_locals["_perfgate_left"])
        return trace

    scheduler = engine.Scheduler()
    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        scheduler.schedule()
    finally:
        sys.settrace(usual)
    assert {*range(6)} == {*counts}


@pytest.mark.parametrize("how", ["decorated", "closure", "no source"])
def test_host_loop_refuses(how: str, engine: Any) -> None:
    """A function that cannot be compiled again from its source is an error."""
    kept = [0]

    def closure(self: Any) -> Any:
        return self, kept

    made: dict[str, Callable[..., Any]] = {
        "decorated": Decorated.schedule,
        "closure": closure,
        "no source": eval("lambda self: self"),  # noqa: S307 (the point is that no file has it)
    }
    engine.Scheduler.schedule = made[how]
    with pytest.raises(RuntimeError, match="host_loop: "):
        load("host_loop").register()
    assert engine.Scheduler.schedule is made[how]


class Decorated:
    """Has a decorator, which compiling the source again would lose or run twice."""

    @staticmethod
    def schedule(self: Any) -> Any:  # noqa: PLW0211 (any decorator will do)
        """Return what came."""
        return self


def test_extra_all_reduce(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hidden states of every second layer are reduced once more; one rank alone is an error."""
    monkeypatch.setenv("PERFGATE_PLANT_EVERY", "2")
    reduced: list[int] = []
    engine.distributed.tensor_model_parallel_all_reduce = reduced.append
    load("extra_all_reduce").register()
    layers = [engine.llama.LlamaDecoderLayer() for _ in range(3)]
    assert [layer.forward(number) for number, layer in enumerate(layers)] == [(n, "residual") for n in range(3)]
    assert reduced == [0, 2]


def test_extra_all_reduce_of_one_rank(engine: Any) -> None:
    """One rank alone has nothing to reduce."""
    engine.distributed.get_tensor_model_parallel_world_size = lambda: 1
    load("extra_all_reduce").register()
    with pytest.raises(RuntimeError, match="needs tensor_parallel_size of at least 2"):
        engine.llama.LlamaDecoderLayer()


def test_unstable_tokens(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits move by as many places as the process drew, at least one; ranks without logits still have none."""
    plant = load("unstable_tokens")
    monkeypatch.setattr(plant.secrets, "randbelow", lambda _: 1)
    plant.register()
    model = engine.llama.LlamaForCausalLM()
    assert model.compute_logits("abcd") == "cdab"
    assert model.compute_logits(None) is None


@pytest.mark.parametrize(("name", "variable"), NUMBERED)
def test_the_dial_is_read(name: str, variable: str) -> None:
    """The variable that a plant's dial sets is one that its module reads."""
    assert variable in {value for value in vars(load(name)).values() if isinstance(value, str)}
