"""Ranges around steps in the ranks of an engine: what runs in vLLM's worker processes, without vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfgate.capture import vllm_ranges


class Rank:
    """A worker of vLLM whose model returns nothing until it samples."""

    def __init__(self, output: str | None = None) -> None:
        self.output = output

    def execute_model(self, scheduled: str) -> str | None:
        """A forward pass."""
        if scheduled == "broken":
            raise RuntimeError(scheduled)
        return self.output

    def sample_tokens(self, _grammar: str) -> str:
        """What comes behind it."""
        return "tokens"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ranges opened, and when they closed."""
    events: list[str] = []

    def open_range(kind: str) -> Callable[[str], Callable[[], None]]:
        def opened(name: str) -> Callable[[], None]:
            events.append(f"{kind} {name}")
            return lambda: events.append("close")

        return opened

    monkeypatch.setattr(vllm_ranges, "open_range", open_range)
    return events


def marked(rank: Rank, *, on: bool = True, process: int = -1) -> Rank:
    """A rank of an engine in another process, as vLLM hands it over."""
    vllm_ranges.mark_steps_of_rank(SimpleNamespace(worker=rank), "nvtx", process, on)
    return rank


def test_a_step_lasts_until_it_has_sampled(said: list[str]) -> None:
    """One range from the forward pass to the end of the sampler, numbered from 0."""
    rank = marked(Rank())
    for _ in range(2):
        assert rank.execute_model("scheduled") is None
        assert rank.sample_tokens("grammar") == "tokens"
    assert said == ["nvtx perfgate.step.0", "close", "nvtx perfgate.step.1", "close"]


def test_a_step_without_a_sampler(said: list[str]) -> None:
    """What the forward pass returns ends it, and so does the next one, or an error."""
    marked(Rank("output")).execute_model("scheduled")
    assert said == ["nvtx perfgate.step.0", "close"]
    said.clear()
    rank = marked(Rank())
    rank.execute_model("scheduled")
    with pytest.raises(RuntimeError, match="broken"):
        rank.execute_model("broken")
    assert said == ["nvtx perfgate.step.0", "close", "nvtx perfgate.step.1", "close"]


def test_ranges_end_with_the_profile(said: list[str]) -> None:
    """Marking twice numbers from 0 again; unmarked, a rank is as before."""
    rank = marked(marked(Rank("output")))
    rank.execute_model("scheduled")
    marked(rank, on=False)
    rank.execute_model("scheduled")
    assert said == ["nvtx perfgate.step.0", "close"]
    assert {*vars(rank)} == {"output"}


def test_a_rank_in_the_engines_process_has_its_ranges(said: list[str]) -> None:
    """There the loop around the step opens them."""
    marked(Rank("output"), process=os.getpid()).execute_model("scheduled")
    assert said == []


def test_all_ranks_are_asked(said: list[str]) -> None:
    """Each is handed the function that marks it; layers are marked where modules run one by one."""
    asked: list[Any] = []

    def call_ranks(_engine: Any, *what: Any) -> list[Any]:
        asked.append(what)
        return []

    engine = SimpleNamespace(vllm_config=SimpleNamespace(compilation_config=SimpleNamespace(mode=0)))
    vllm_ranges.mark_ranks(engine, call_ranks, "nvtx", on=True)
    vllm_ranges.mark_ranks(engine, call_ranks, "nvtx", on=False)
    assert asked == [
        (vllm_ranges.mark_steps_of_rank, "nvtx", os.getpid(), True),
        (vllm_ranges.mark_layers_of_rank, "nvtx"),
        (vllm_ranges.mark_steps_of_rank, "nvtx", os.getpid(), False),
    ]
    assert said == []
