"""Engine steps: found in the ranges that an engine's process opens, and given to whatever was launched inside them.

``perfgate.step.N`` is preferred. vLLM's own ``execute_context_...`` ranges end before the sampler runs
(``vllm/v1/worker/gpu_worker.py``), so with those a step lasts from one range's start to the next one's.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.kernel_table import NO_TIME, NONE, STEP_KINDS, Steps, filled

STEP = re.compile(r"perfgate\.step\.(\d{1,18})(?:\.(decode|prefill|mixed))?")
EXECUTE = re.compile(r"execute_(?:\d+_)?context_(\d+)\([\dsqk]*\)_generation_(\d+)\([\dsqk]*\)")
LAYER = re.compile(r"(?:^|\W)layers?\.(\d{1,4})\b")
"""Layer ranges: ``perfgate.layer.5``, or a module's path as vLLM's hooks write it (``model.layers.5.self_attn``)."""

_PART_ROWS = 1 << 20
OPEN_END = np.iinfo(np.int64).max
KIND = {kind: number for number, kind in enumerate(STEP_KINDS)}


@dataclass(frozen=True)
class Range:
    """A named range on the host.

    Args:
        name: Its text.
        start_ns: Where it opens.
        end_ns: Where it closes; ``None`` where the trace does not show that.
        process: Index of its process.
        thread: Its thread, any number that tells threads of a process apart.
    """

    name: str
    start_ns: int
    end_ns: int | None
    process: int
    thread: int = 0


def find_steps(ranges: Iterable[Range], processes: Iterable[int], where: str) -> tuple[Steps, tuple[Note, ...]]:
    """The steps of the processes that launched something, in order of process and start; ``where`` is for errors.

    Raises:
        RecordError: A process has two steps of one number.
    """
    owned = {process: (list[Range](), list[Range]()) for process in processes}
    for span in ranges:
        if span.process in owned:
            own, engine = owned[span.process]
            if STEP.fullmatch(span.name):
                own.append(span)
            elif EXECUTE.fullmatch(span.name):
                engine.append(span)
    parts, cautions = [], []
    for _, (own, engine) in sorted(owned.items()):
        unclosed = [span.name for span in own if span.end_ns is None]
        if unclosed:
            text = f"range {unclosed[0]} was never closed; its step is left out"
            cautions.append(Note(code="trace-incomplete", text=text))
        closed = sorted((span for span in own if span.end_ns is not None), key=lambda span: span.start_ns)
        engine.sort(key=lambda span: span.start_ns)
        if closed:
            parts.append(_own_steps(closed, engine, where))
        elif engine:
            ends = [*(span.start_ns for span in engine[1:]), int(OPEN_END)]
            parts.append(_steps(engine, range(len(engine)), [_kind([span]) for span in engine], ends, own=False))
    if not parts:
        return filled(Steps), tuple(cautions)
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    return Steps(**columns), tuple(cautions)


def _own_steps(own: Sequence[Range], engine: Sequence[Range], where: str) -> Steps:
    """Steps from ``perfgate.step.N``; what vLLM's ranges inside one say is its kind."""
    matches = [match for span in own if (match := STEP.fullmatch(span.name))]
    index = [int(match[1]) for match in matches]
    twice = next((number for number, count in Counter(index).items() if count > 1), None)
    if twice is not None:
        text = f"a process has perfgate.step.{twice} twice"
        raise RecordError(text, where=where, remedy="Trace one run at a time.")
    starts = np.array([span.start_ns for span in engine], np.int64)
    kinds, ends = [], [span.end_ns or 0 for span in own]
    for span, match, end in zip(own, matches, ends, strict=True):
        first, last = np.searchsorted(starts, (span.start_ns, end))
        kinds.append(KIND[match[2]] if match[2] else _kind(engine[first:last]))
    return _steps(own, index, kinds, ends, own=True)


def _steps(ranges: Sequence[Range], index: Sequence[int], kinds: list[int], ends: list[int], *, own: bool) -> Steps:
    """Steps of one process; the last of those from vLLM's own ranges has no end."""
    complete = np.ones(len(ranges), bool)
    complete[-1] = own
    return filled(
        Steps,
        index=np.array(index),
        kind=np.array(kinds),
        start_ns=np.array([span.start_ns for span in ranges]),
        end_ns=np.array(ends),
        process=np.array([span.process for span in ranges]),
        complete=complete,
        own=np.full(len(ranges), own),
    )


def _kind(engine: Sequence[Range]) -> int:
    """What vLLM says of a step: requests in prefill (context) and in decode (generation)."""
    counts = [(int(match[1]), int(match[2])) for span in engine if (match := EXECUTE.fullmatch(span.name))]
    if not counts:
        return KIND["unknown"]
    context, generation = (any(count) for count in zip(*counts, strict=True))
    if context and generation:
        return KIND["mixed"]
    return KIND["prefill" if context else "decode" if generation else "idle"]


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
    found = np.full(len(time_ns), NONE, np.int32)
    for number, at in itertools.product(np.unique(owner), range(0, len(time_ns), _PART_ROWS)):
        first, beyond = np.searchsorted(owner, (number, number + 1))
        part = slice(at, at + _PART_ROWS)  # in parts, so that what is worked on stays small
        rows = np.flatnonzero((process[part] == number) & (time_ns[part] != NO_TIME)) + at
        index = np.searchsorted(starts[first:beyond], time_ns[rows], side="right") - 1 + first
        inside = (index >= first) & (time_ns[rows] <= ends[np.maximum(index, first)])
        found[rows[inside]] = index[inside]
    return found
