"""What a worker says of its memory: added up over processes and GPUs, refused where it makes no sense."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.timing import Held, memory_of, read_held
from perfgate.metrics.memory import Memory

WORKER_SIDE = Path(__file__).parents[2] / "perfgate" / "capture" / "vllm_memory.py"


def worker_side() -> Any:
    """The file that the worker loads, as the worker does."""
    module = types.ModuleType("vllm_memory")
    importlib.machinery.SourceFileLoader("vllm_memory", str(WORKER_SIDE)).exec_module(module)
    return module


def test_processes_count_once_and_every_gpu() -> None:
    """Two ranks, one in the engine's own process: that process is read twice and counted once."""
    said = [[7, 100, 120], [7, 100, 120, 50, 60, 64], [8, 10, 11, 5, 6, 8]]

    assert read_held({"memory": said}) == Held(110, 131, 55, 66, 72)


def test_without_a_gpu_there_are_processes_alone() -> None:
    """An engine on the CPU has no figures of a GPU; one that tells nothing has none at all."""
    assert read_held({"memory": [[7, 100, 120], [7, 100, 120]]}) == Held(100, 120, None, None, None)
    assert read_held({"memory": None}) is None
    assert read_held({}) is None


@pytest.mark.parametrize("said", [[], {}, "much", [[1, 2]], [[1, 2, 3, 4]], [[1, 2, -3]], [[1, 2, 3.5]],
                                  [[1, 2, 2**63]], [[1, 2, True]], [[1, 2, 3]] * 1026])  # fmt: skip
def test_what_makes_no_sense_ends_the_trial(said: Any) -> None:
    """Another shape, a negative, a fraction, more than any machine has, or more processes than ranks."""
    with pytest.raises(InvalidTrialError, match="memory: expected figures of each process") as caught:
        read_held({"memory": said})
    assert caught.value.code == "engine-failed"


def test_a_trial_has_a_figure_of_each_iteration() -> None:
    """In order; the peak of the host is the highest, and an iteration without a reading leaves the trial without."""
    held = [Held(10, 30, 5, 7, 8), Held(12, 31, 6, 9, 9)]

    assert memory_of(held) == Memory(
        resident=(10, 12), peak_resident=31, allocated=(5, 6), peak_allocated=(7, 9), peak_reserved=(8, 9)
    )
    assert memory_of([*held, None]) is None
    assert memory_of([]) is None
    assert memory_of([Held(10, 30, None, None, None)]) == Memory(resident=(10,), peak_resident=30)


class Tensor:
    """A tensor of which only the storage matters."""

    def __init__(self, place: int, size: int) -> None:
        self.storage = types.SimpleNamespace(data_ptr=lambda: place, nbytes=lambda: size)

    def untyped_storage(self) -> Any:
        """As of a tensor."""
        return self.storage


def test_weights_and_cache_of_each_rank_count_once() -> None:
    """Tied weights and layers that share a cache count once; vLLM's own figure of the weights goes first."""
    kept = worker_side().kept_bytes
    tied, caches = Tensor(1, 100), [Tensor(3, 1000), [Tensor(4, 500), Tensor(4, 500)]]
    model = types.SimpleNamespace(parameters=lambda: [tied, Tensor(2, 10), tied], buffers=list)
    on_cpu = types.SimpleNamespace(model_runner=types.SimpleNamespace(model=model, kv_caches=caches))
    told = types.SimpleNamespace(model_runner=types.SimpleNamespace(model_memory_usage=77, kv_caches=caches))
    ranks = {"cpu": [on_cpu], "gpus": [told, told], "one silent": [told, types.SimpleNamespace()], "none": []}

    found = {
        name: kept(None, lambda _engine, read, own=own: [read(rank) for rank in own]) for name, own in ranks.items()
    }

    assert {name: tuple(sizes.values()) for name, sizes in found.items()} == {
        "cpu": (110, 1500), "gpus": (154, 3000), "one silent": (None, None), "none": (None, None),
    }  # fmt: skip


def test_a_process_tells_what_it_holds() -> None:
    """This one's own figures: resident without files at most what was ever resident."""
    pid, resident, peak = worker_side().process_memory()

    assert pid > 0
    assert 0 < resident <= peak


def test_a_process_tells_what_it_has_imported_and_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules by package, without digests of generated code; torch's own totals only where a GPU was touched."""
    modules = ["json", "json.decoder", "torch", "torch.fx.node", "torch.fx.passes.base", "torch.gen_1.a"]
    stats = {"allocation.all.allocated": 70, "segment.all.allocated": 3, "allocation.all.current": 9}
    cuda = types.SimpleNamespace(is_initialized=lambda: True, memory_stats=lambda: stats)
    named = dict.fromkeys(modules) | {"torch": types.SimpleNamespace(cuda=cuda)}
    monkeypatch.setattr(sys, "modules", named)
    try:
        found = worker_side().process_figures(lambda name: name.replace("_1", ""))
        cuda.is_initialized = lambda: False
        untouched = worker_side().process_figures(str)
    finally:
        monkeypatch.undo()

    packages = {"json": 1, "torch.fx": 2, "torch.gen": 1}
    assert found["modules"] == {"modules": 6, **{f"modules of {name}": many for name, many in packages.items()}}
    assert (found["totals"]["CUDA allocations"], found["totals"]["CUDA segments"]) == (70, 3)
    assert [*untouched["totals"]] == ["blocks of Python's memory"]
    assert untouched["totals"]["blocks of Python's memory"] > 0


def test_an_allocator_without_totals_costs_no_trial(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pluggable allocator refuses ``memory_stats``: the log says so, and the other figures are told."""

    def refuse() -> dict[str, int]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    cuda = types.SimpleNamespace(is_initialized=lambda: True, memory_stats=refuse)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))

    found = worker_side().process_figures(str)

    assert [*found["totals"]] == ["blocks of Python's memory"]
    assert found["modules"]["modules"] > 0
    said = "no totals of torch's allocator: RuntimeError: CUDAPluggableAllocator does not yet support getDeviceStats"
    assert said in capfd.readouterr().err


def test_readings_end_with_the_first_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    """A rank out of reach or one that fails costs the readings and no trial; the log says why, once."""
    reader = worker_side().MemoryReader(lambda *_: ["RuntimeError: no"])

    assert reader.read(None) == reader.read(None) == []
    assert capfd.readouterr().err.count("perfgate: no reading of memory") == 1
