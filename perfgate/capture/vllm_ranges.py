"""Ranges around the steps and layers of an engine, as a profiler shows them, in whichever process runs the model.

The subject's own interpreter loads this beside :mod:`perfgate.capture.vllm_worker`: nothing of perfgate is imported, on
Python 3.10. What runs in a rank travels there by value, because no rank can import this file.

A step of ranks in processes of their own is a range in each of them, from vLLM's call of ``execute_model`` to the end
of ``sample_tokens``. All ranks answer the same calls in the same order, so a step has one number in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

CallRanks = Callable[..., "list[Any]"]


class Ranges:
    """Numbered ranges around engine steps.

    Args:
        kind: ``nvtx`` or ``record_function``.
    """

    def __init__(self, kind: Any) -> None:
        self.opened = open_range(kind)
        self.steps = 0

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """``step`` in a range of its own at every call."""

        def ranged() -> Any:
            close = self.opened(f"perfgate.step.{self.steps}")
            self.steps += 1
            try:
                return step()
            finally:
                close()

        return ranged


def open_range(kind: Any) -> Callable[[str], Callable[[], Any]]:
    """A function that opens a range of that name and returns the one that closes it."""
    import torch

    if kind == "record_function":

        def recorded(name: str) -> Callable[[], Any]:
            block = torch.profiler.record_function(name)
            block.__enter__()
            return lambda: block.__exit__(None, None, None)

        return recorded
    if kind != "nvtx":
        raise ValueError(f"no ranges of kind {kind!r}")
    # Visible to every nsys; newer releases of the package nvtx are not visible to older ones.
    nvtx = torch.cuda.nvtx

    def started(name: str) -> Callable[[], Any]:
        handle = nvtx.range_start(name)
        return lambda: nvtx.range_end(handle)

    return started


def mark_ranks(engine: Any, call_ranks: CallRanks, kind: Any, *, on: bool) -> None:
    """Put ranges around the steps of ranks in other processes, and around layers in all; or end those of steps."""
    call_ranks(engine, mark_steps_of_rank, kind, os.getpid(), on)
    mode = getattr(engine.vllm_config.compilation_config, "mode", None)
    if on and not getattr(mode, "value", mode):  # a compiled model is left alone
        call_ranks(engine, mark_layers_of_rank, kind)


def mark_steps_of_rank(worker: Any, kind: Any, engines_process: int, on: bool) -> None:  # noqa: FBT001 (positional call)
    """Numbered ranges around the steps of one rank, from 0, or no more; called by vLLM.

    A rank in the engine's own process has the engine's ranges.
    """
    rank = getattr(worker, "worker", worker)
    vars(rank).pop("execute_model", None)
    vars(rank).pop("sample_tokens", None)
    execute, sample = getattr(rank, "execute_model", None), getattr(rank, "sample_tokens", None)
    if not on or execute is None or os.getpid() == engines_process:
        return
    opened = open_range(kind)
    closing: list[Callable[[], Any]] = []
    begun = [0]

    def close() -> None:
        while closing:
            closing.pop()()

    def execute_model(*arguments: Any, **named: Any) -> Any:
        close()  # where vLLM did not sample
        closing.append(opened(f"perfgate.step.{begun[0]}"))
        begun[0] += 1
        try:
            output = execute(*arguments, **named)
        except BaseException:
            close()
            raise
        if output is not None or sample is None:
            close()
        return output

    vars(rank)["execute_model"] = execute_model
    if sample is None:
        return

    def sample_tokens(*arguments: Any, **named: Any) -> Any:
        try:
            return sample(*arguments, **named)
        finally:
            close()

    vars(rank)["sample_tokens"] = sample_tokens


def mark_layers_of_rank(worker: Any, kind: Any) -> None:
    """Put ranges around the layers of one rank, where modules run one by one; called by vLLM."""
    import torch

    model = getattr(runner_of(worker), "model", None)
    if not isinstance(model, torch.nn.Module) or getattr(model, "perfgate_marked", False):
        return
    opened = open_range(kind)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layers: Any = max(lists, key=len, default=[])
    for number, layer in enumerate(layers):
        mark_layer(layer, f"perfgate.layer.{number}", opened)
    vars(model)["perfgate_marked"] = True


def runner_of(worker: Any) -> Any:
    """What runs the model in a rank; ``None`` where it is out of reach."""
    return getattr(getattr(worker, "worker", worker), "model_runner", None)


def mark_layer(layer: Any, name: str, opened: Callable[[str], Callable[[], Any]]) -> None:
    """A range around every forward of one module, also one that fails."""
    closing: list[Callable[[], Any]] = []

    def before(*_: Any) -> None:
        closing.append(opened(name))

    def after(*_: Any) -> None:
        closing.pop()()

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)
