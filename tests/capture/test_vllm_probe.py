"""What a rank does for a reading; torch is a stand-in that notes what it is asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perfgate.capture.vllm_probe import KERNELS, read_rank


class Torch(ModuleType):
    """CUDA without a GPU: every call is a line in ``calls``; replays take ``took_ms`` in turn, and adds may run out."""

    def __init__(self, *, initialized: bool = True, adds: int = KERNELS + 1) -> None:
        super().__init__("torch")
        self.calls: list[str] = []
        self.adds_left = adds
        self.took_ms: Iterator[float] = iter([0.25, 0.2, 0.5, 0.75])
        self.float32 = "float32"
        self.cuda = SimpleNamespace(
            is_initialized=lambda: initialized, synchronize=self._noting("synchronize"), Stream=object,
            stream=self._stream, CUDAGraph=self._graph, Event=lambda **_: self._event(),
        )  # fmt: skip

    def zeros(self, *_: Any, **__: Any) -> SimpleNamespace:
        """A tensor."""
        return SimpleNamespace(add_=self._add)

    def _add(self, _: float) -> None:
        if not self.adds_left:
            raise RuntimeError("CUDA error")
        self.adds_left -= 1
        self.calls.append("add")

    def _noting(self, call: str) -> Callable[..., None]:
        return lambda *_, **__: self.calls.append(call)

    @contextlib.contextmanager
    def _stream(self, _: object) -> Iterator[None]:
        self.calls.append("enter stream")
        try:
            yield
        finally:
            self.calls.append("leave stream")

    def _graph(self) -> SimpleNamespace:
        names = {"capture_begin": "begin", "capture_end": "end", "replay": "replay"}
        return SimpleNamespace(**{name: self._noting(call) for name, call in names.items()})

    def _event(self) -> SimpleNamespace:
        return SimpleNamespace(record=self._noting("record"), elapsed_time=lambda _: next(self.took_ms))


CAPTURED = ["synchronize", "enter stream", "add", "synchronize", "begin", *["add"] * KERNELS, "end", "leave stream"]
READ = ["synchronize", "replay", "record", "replay", "record", "record", "replay", "record", "synchronize"]


def test_a_graph_is_captured_once_and_the_shorter_replay_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank captures at its first reading; of each reading's two timed replays the shorter is told in nanoseconds."""
    torch, worker = Torch(), SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert [read_rank(worker), read_rank(worker)] == [200_000, 500_000]
    assert torch.calls == [*CAPTURED, *READ, *READ]


def test_a_failed_capture_is_closed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot be captured leaves no capture open, and the rank answers with the error's words."""
    torch = Torch(adds=2)
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert read_rank(SimpleNamespace()) == "RuntimeError: CUDA error"
    assert torch.calls[-4:] == ["begin", "add", "end", "leave stream"]


def test_without_cuda_a_loop_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU a reading is the time of a fixed loop, and nothing is asked of CUDA."""
    torch = Torch(initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)

    reading = read_rank(SimpleNamespace())

    assert isinstance(reading, int)
    assert reading > 0
    assert torch.calls == []
