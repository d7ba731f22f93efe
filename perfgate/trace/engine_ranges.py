"""What engines and profilers call the ranges that they open on the host, and what such a name says of a step.

perfgate's own ranges come first, then an engine's, then those of PyTorch's profiler, which say nothing of what a step
computed. Sources, each read in the project's repository:

- vLLM: ``execute_context_C(..)_generation_G(..)``, newer ``execute_N_context_...`` (``vllm/v1/worker/gpu_worker.py``).
- SGLang: ``scheduler.run_batch`` around a batch (``python/sglang/srt/utils/nvtx_utils.py``), and
  ``step[DECODE bs=8]``, ``step[EXTEND bs=2 toks=512]`` around a forward pass of ``ModelRunner``
  (``python/sglang/srt/utils/profile_utils.py``, sgl-project/sglang#23419). A draft model's passes are ranges too.
- TensorRT-LLM: ``[Executor] _forward_step N: C ctx reqs, G gen reqs``, newer with ``T ctx tokens``, older without N
  (``tensorrt_llm/_torch/pyexecutor/py_executor.py``).
- PyTorch: ``ProfilerStep#N``, from one ``profiler.step()`` to the next (``torch/profiler/profiler.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

STEP = re.compile(r"perfgate\.step\.([0-9]+)(?:\.(decode|prefill|mixed))?")
LAYER = re.compile(r"(?:^|\W)layers?\.(\d{1,4})\b")
"""Layer ranges: ``perfgate.layer.5``, or a module's path as vLLM's hooks write it (``model.layers.5.self_attn``)."""

PROFILER_STEP = re.compile(r"ProfilerStep#([0-9]+)")

LONGEST_NUMBER = 18
"""Digits of a step's number that fit into a column."""

GLOBS = (
    "perfgate.*", "execute_*", "scheduler.run_batch", "step[[]*", "[[]Executor] _forward_step*", "ProfilerStep#*",
    "*layer*",
)  # fmt: skip
"""The same for SQLite's ``GLOB``, which is coarser: what it finds may be another range."""

_CONTEXT = ("EXTEND", "PREFILL", "SPLIT_PREFILL", "DLLM_EXTEND")
_GENERATION = ("DECODE", "TARGET_VERIFY")
_NEITHER = ("IDLE", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")
"""SGLang's modes (``python/sglang/srt/model_executor/forward_batch_info.py``); ``MIXED`` is both."""

Counts = tuple[int, int]
"""Requests in prefill (context) and in decode (generation)."""


@dataclass(frozen=True)
class EngineRange:
    """A sort of range that an engine opens in each step.

    Args:
        pattern: What it is called.
        counts: What its name says of the requests; ``None`` where it says nothing.
        number: Group of the pattern that numbers the step; 0 where none does.
    """

    pattern: re.Pattern[str]
    counts: Callable[[re.Match[str]], Counts | None]
    number: int = 0


def _sglang_counts(match: re.Match[str]) -> Counts | None:
    mode = match[1]
    both = mode == "MIXED"
    known = both or mode in (*_CONTEXT, *_GENERATION, *_NEITHER)
    return (int(both or mode in _CONTEXT), int(both or mode in _GENERATION)) if known else None


VLLM = EngineRange(
    re.compile(r"execute_(?:\d+_)?context_(\d+)\([\dsqk]*\)_generation_(\d+)\([\dsqk]*\)"),
    lambda match: (int(match[1]), int(match[2])),
)
SGLANG_BATCH = EngineRange(re.compile(r"scheduler\.run_batch"), lambda _: None)
SGLANG_FORWARD = EngineRange(re.compile(r"step\[([A-Z][A-Z0-9_]{0,40})(?: [\w=. ]{0,400})?\]"), _sglang_counts)
TENSORRT_LLM = EngineRange(
    re.compile(
        r"\[Executor\] _forward_step(?: ([0-9]+))?: (\d{1,9}) ctx reqs(?:, \d{1,12} ctx tokens)?, (\d{1,9}) gen reqs"
    ),
    lambda match: (int(match[2]), int(match[3])),
    number=1,
)
ENGINES = (VLLM, SGLANG_BATCH, SGLANG_FORWARD, TENSORRT_LLM)
"""In the order in which they are believed where a process opens several sorts."""

_Name = TypeVar("_Name")


def openers(names: Sequence[tuple[str, _Name]]) -> tuple[EngineRange | None, list[_Name]]:
    """The ranges that begin a step: of the first sort of :data:`ENGINES` that there is, without a draft model's.

    Args:
        names: The names of a process's ranges, each with what it belongs to.

    Returns:
        The sort, and what belongs to its ranges; nothing where no engine's range is there.
    """
    for sort in ENGINES:
        found = [(match, one) for name, one in names if (match := sort.pattern.fullmatch(name))]
        if sort is SGLANG_FORWARD:
            modes = {match[1] for match, _ in found}
            drafts = {"DECODE"} if "TARGET_VERIFY" in modes else set()  # a draft's passes are before it
            kept = [(match, one) for match, one in found if match[1] not in drafts and "DRAFT" not in match[1]]
            found = kept or found
        if found:
            return sort, [one for _, one in found]
    return None, []


@lru_cache(maxsize=4096)
def is_engines(name: str) -> bool:
    """Whether an engine's range has this name."""
    return any(sort.pattern.fullmatch(name) for sort in ENGINES)


@lru_cache(maxsize=4096)
def is_step(name: str) -> bool:
    """Whether a range of this name is a step, or says what one computed."""
    return bool(STEP.fullmatch(name) or PROFILER_STEP.fullmatch(name)) or is_engines(name)


def kind_of(names: Iterable[str]) -> str:
    """What a step computed, by an engine's ranges in it: of :data:`perfgate.trace.kernel_table.STEP_KINDS`."""
    matches = [(sort, match) for name in names for sort in ENGINES if (match := sort.pattern.fullmatch(name))]
    counts = [count for sort, match in matches if (count := sort.counts(match)) is not None]
    if not counts:
        return "unknown"
    context, generation = (any(count) for count in zip(*counts, strict=True))
    if context and generation:
        return "mixed"
    return "prefill" if context else "decode" if generation else "idle"
