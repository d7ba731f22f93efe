"""Engine steps: found in the ranges that an engine's process opens, and given to whatever was launched inside them.

``perfgate.step.N`` is preferred, then an engine's own ranges, then those of PyTorch's profiler, which say nothing of
what a step computed. An engine's ranges end before the sampler runs, so with those a step lasts from one range's start
to the next one's. Sources, each read in the project's repository:

- vLLM: ``execute_context_C(..)_generation_G(..)``, newer ``execute_N_context_...`` (``vllm/v1/worker/gpu_worker.py``).
- SGLang: ``scheduler.run_batch`` around a batch (``python/sglang/srt/utils/nvtx_utils.py``), and
  ``step[DECODE bs=8]``, ``step[EXTEND bs=2 toks=512]`` around a forward pass of ``ModelRunner``
  (``python/sglang/srt/utils/profile_utils.py``, sgl-project/sglang#23419). A draft model's passes are ranges too.
- TensorRT-LLM: ``[Executor] _forward_step N: C ctx reqs, G gen reqs``, newer with ``T ctx tokens``, older without N
  (``tensorrt_llm/_torch/pyexecutor/py_executor.py``).
- PyTorch: ``ProfilerStep#N``, from one ``profiler.step()`` to the next (``torch/profiler/profiler.py``).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.kernel_table import NO_TIME, NONE, STEP_KINDS, Steps, filled
from perfgate.units import plural

_PART_ROWS = 1 << 20
SHOWN = 60
"""Characters of a range's name that a message shows."""
OPEN_END = np.iinfo(np.int64).max
KIND = {kind: number for number, kind in enumerate(STEP_KINDS)}


@dataclass(frozen=True)
class Range:
    """A named range on the host.

    Args:
        end_ns: Where it closes; ``None`` where the trace does not show that.
        thread: Its thread, as :attr:`perfgate.trace.kernel_table.Calls.thread`.
    """

    name: str
    start_ns: int
    end_ns: int | None
    process: int
    thread: int = NONE


def find_steps(ranges: Iterable[Range], processes: Iterable[int], where: str) -> tuple[Steps, tuple[Note, ...]]:
    """The steps of the processes that launched something, in order of process and start; ``where`` is for errors.

    Where none of these opened a range that names a step, and one other process did, its steps are theirs: an engine
    whose workers launch has its loop in another process.

    Raises:
        RecordError: A process has two steps of one number, or one whose number is too large.
    """
    by_process: dict[int, list[Range]] = {}
    for span in ranges:
        if is_step(span.name):
            by_process.setdefault(span.process, []).append(span)
    owned = {process: by_process[process] for process in sorted(processes) if process in by_process}
    parts, cautions = [], []
    if not owned and len(by_process) == 1:
        (spans,) = by_process.values()
        owned = {
            process: [replace(span, process=process, thread=NONE) for span in spans] for process in sorted(processes)
        }
        text = "the steps are ranges of another process than launched the kernels: launches may come after their range"
        cautions.append(Note(code="steps-unclear", text=text))
    for spans in owned.values():
        part, unclosed = _steps_of(sorted(spans, key=lambda span: span.start_ns), where)
        cautions += unclosed
        parts += [part] if len(part) else []
    if not parts:
        return filled(Steps), tuple(cautions)
    return Steps.joined(parts), tuple(dict.fromkeys(cautions))


def _steps_of(spans: Sequence[Range], where: str) -> tuple[Steps, list[Note]]:
    """The steps of one process, by the best sort of range that it has, and what to know of them."""
    marked = [span for span in spans if STEP.fullmatch(span.name)]
    closed = [span for span in marked if span.end_ns is not None]
    cautions = []
    if len(closed) < len(marked):
        unclosed = next(span.name for span in marked if span.end_ns is None)
        text = f"range {unclosed} was never closed; its step is left out"
        cautions.append(Note(code="trace-damaged", text=text))
    engine = [span for span in spans if is_engines(span.name)]
    sort, opening = openers([(span.name, span) for span in engine])
    if closed:
        return _own_steps(closed, engine, where), [*cautions, *_overlaps(closed)]
    if sort is not None:
        ends = [*(span.start_ns for span in opening[1:]), int(OPEN_END)]
        numbers = [match[sort.number] if sort.number else None for span in opening
                   if (match := sort.pattern.fullmatch(span.name))]  # fmt: skip
        numbered, doubts = _numbered(opening, numbers)
        telling = engine if sort is SGLANG_BATCH else opening  # a draft's passes say nothing of the step
        return _steps(opening, numbered, _kinds(telling, opening, ends), ends, own=False), [*cautions, *doubts]
    steps = [span for span in spans if PROFILER_STEP.fullmatch(span.name) and span.end_ns is not None]
    if not steps:
        return filled(Steps), cautions
    numbers = [match[1] for span in steps if (match := PROFILER_STEP.fullmatch(span.name))]
    numbered, doubts = _numbered(steps, numbers)
    made = _steps(steps, numbered, [KIND["unknown"]] * len(steps), [span.end_ns or 0 for span in steps])
    return made, [*cautions, *doubts, *_overlaps(steps)]


def _numbered(ranges: Sequence[Range], numbers: Sequence[str | None]) -> tuple[Sequence[int], list[Note]]:
    """The steps' own numbers where each has one of its own; else from 0, which is said where any has one."""
    given = [int(number) for number in numbers if number is not None and len(number) <= LONGEST_NUMBER]
    if len(set(given)) == len(numbers):
        return given, []
    if not any(numbers):
        return range(len(numbers)), []
    pairs = list(zip(ranges, numbers, strict=True))
    why = next((f"{span.name[:SHOWN]}... is too large" for span, n in pairs if n and len(n) > LONGEST_NUMBER), "")
    twice = next((number for number, count in Counter(numbers).items() if number and count > 1), None)
    if not why and twice:
        often = sum(number == twice for number in numbers)
        why = f"{next(span.name for span, number in pairs if number == twice)[:SHOWN]} is there {often} times"
    text = f"the steps are numbered from 0 in order of time: {why or 'some of their ranges have no number'}"
    return range(len(numbers)), [Note(code="steps-unclear", text=text)]


def _overlaps(ranges: Sequence[Range]) -> list[Note]:
    """What to say of steps that begin before an earlier one has ended."""
    until = np.maximum.accumulate([span.end_ns or 0 for span in ranges])
    early = [span for span, end_ns in zip(ranges[1:], until[:-1].tolist(), strict=True) if span.start_ns < end_ns]
    if not early:
        return []
    text = (
        f"{len(early)} of {plural(len(ranges), 'step')} begin before an earlier one has ended, such as "
        f"{early[0].name[:SHOWN]}: what is launched in both belongs to the later one"
    )
    return [Note(code="steps-unclear", text=text)]


def _own_steps(spans: Sequence[Range], engine: Sequence[Range], where: str) -> Steps:
    """Steps from ``perfgate.step.N``; what an engine's ranges inside one say is its kind."""
    matches = [match for span in spans if (match := STEP.fullmatch(span.name))]
    large = next((match[0] for match in matches if len(match[1]) > LONGEST_NUMBER), None)
    if large is not None:
        raise RecordError(f"holds a step with a number that is too large: {large[:SHOWN]}...", where=where)
    index = [int(match[1]) for match in matches]
    twice = next((number for number, count in Counter(index).items() if count > 1), None)
    if twice is not None:
        text = f"a process has perfgate.step.{twice} twice"
        raise RecordError(text, where=where, remedy="Trace one run at a time.")
    ends = [span.end_ns or 0 for span in spans]
    named_kinds = [KIND[match[2]] if match[2] else NONE for match in matches]
    kinds = [
        said if said != NONE else kind for said, kind in zip(named_kinds, _kinds(engine, spans, ends), strict=True)
    ]
    return _steps(spans, index, kinds, ends, own=True)


def _kinds(engine: Sequence[Range], steps: Sequence[Range], ends: Sequence[int]) -> list[int]:
    """What the engine's ranges that begin in each step say that it computed."""
    starts = np.array([span.start_ns for span in engine], np.int64)
    first = np.searchsorted(starts, [span.start_ns for span in steps]).tolist()
    last = np.searchsorted(starts, ends).tolist()
    return [KIND[kind_of(span.name for span in engine[a:b])] for a, b in zip(first, last, strict=True)]


def _steps(
    ranges: Sequence[Range], index: Sequence[int], kinds: list[int], ends: list[int], *, own: bool | None = None
) -> Steps:
    """Steps of one process: perfgate's own, an engine's, of which the last has no end, or neither's (``None``)."""
    complete = np.ones(len(ranges), bool)
    complete[-1] = own is not False
    return filled(
        Steps,
        index=np.array(index),
        kind=np.array(kinds),
        start_ns=np.array([span.start_ns for span in ranges]),
        end_ns=np.array(ends),
        process=np.array([span.process for span in ranges]),
        thread=np.array([span.thread for span in ranges]),
        complete=complete,
        own=np.full(len(ranges), bool(own)),
    )


def steps_at(steps: Steps, process: NDArray[np.int16], time_ns: NDArray[np.int64]) -> NDArray[np.int32]:
    """Per event, the step of its process that was open at that time; -1 where none was, or the time is unknown."""
    return _spans_at(steps.process, steps.start_ns, steps.end_ns, process, time_ns)


def layers_at(
    ranges: Iterable[Range], process: NDArray[np.int16], time_ns: NDArray[np.int64]
) -> NDArray[np.int16] | None:
    """Per event, the layer whose range was open at that time, else -1; ``None`` where there are no layer ranges."""
    named = [(span, match[1]) for span in ranges if span.end_ns is not None and (match := LAYER.search(span.name))]
    if not named:
        return None
    named.sort(key=lambda pair: (pair[0].process, pair[0].start_ns, -(pair[0].end_ns or 0)))
    outer: list[tuple[int, int, int, int]] = []
    for span, layer in named:  # ranges of a layer's own modules are inside the layer's and say the same
        if not outer or outer[-1][0] != span.process or span.start_ns >= outer[-1][2]:
            outer.append((span.process, span.start_ns, span.end_ns or 0, int(layer)))
    owner, start_ns, end_ns, number = np.array(outer, np.int64).T
    return np.append(number, NONE).astype(np.int16)[_spans_at(owner, start_ns, end_ns, process, time_ns)]


def _spans_at(
    owner: NDArray[Any],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    process: NDArray[Any],
    time_ns: NDArray[Any],
) -> NDArray[np.int32]:
    """The last span of an event's process that began by its time, where it had not ended; spans are sorted by both."""
    spans = np.full(len(time_ns), NONE, np.int32)
    for number, at in itertools.product(np.unique(owner), range(0, len(time_ns), _PART_ROWS)):
        first, beyond = (int(np.searchsorted(owner, number, side)) for side in ("left", "right"))
        part = slice(at, at + _PART_ROWS)  # in parts, so that what is worked on stays small
        rows = np.flatnonzero((process[part] == number) & (time_ns[part] != NO_TIME)) + at
        index = np.searchsorted(starts[first:beyond], time_ns[rows], side="right") - 1 + first
        inside = (index >= first) & (time_ns[rows] <= ends[np.maximum(index, first)])
        spans[rows[inside]] = index[inside]
    return spans


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
        counts: What its name says of the requests; ``None`` where it says nothing.
        number: Group of the pattern that numbers the step; 0 where none does.
    """

    pattern: re.Pattern[str]
    counts: Callable[[re.Match[str]], Counts | None]
    number: int = 0


def _sglang_counts(match: re.Match[str]) -> Counts | None:
    mode = match[1]
    both = mode == "MIXED"
    listed = both or mode in (*_CONTEXT, *_GENERATION, *_NEITHER)
    return (int(both or mode in _CONTEXT), int(both or mode in _GENERATION)) if listed else None


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
        matches = [(match, owner) for name, owner in names if (match := sort.pattern.fullmatch(name))]
        if sort is SGLANG_FORWARD:
            modes = {match[1] for match, _ in matches}
            drafts = {"DECODE"} if "TARGET_VERIFY" in modes else set()  # a draft's passes are before it
            kept = [(match, owner) for match, owner in matches if match[1] not in drafts and "DRAFT" not in match[1]]
            matches = kept or matches
        if matches:
            return sort, [owner for _, owner in matches]
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
