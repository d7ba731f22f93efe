"""Engine steps: found in the ranges that an engine's process opens, and given to whatever was launched inside them.

``perfgate.step.N`` is preferred. vLLM's own ``execute_context_...`` ranges end before the sampler runs
(``vllm/v1/worker/gpu_worker.py``), so with those a step lasts from one range's start to the next one's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    wanted = {process: (list[Range](), list[Range]()) for process in processes}
    for one in ranges:
        if one.process in wanted:
            own, engine = wanted[one.process]
            if STEP.fullmatch(one.name):
                own.append(one)
            elif EXECUTE.fullmatch(one.name):
                engine.append(one)
    parts, cautions = [], []
    for _, (own, engine) in sorted(wanted.items()):
        unclosed = [one.name for one in own if one.end_ns is None]
        if unclosed:
            cautions.append(
                Note(code="trace-incomplete", text=f"range {unclosed[0]} was never closed; its step is left out")
            )
        closed = sorted((one for one in own if one.end_ns is not None), key=lambda one: one.start_ns)
        engine.sort(key=lambda one: one.start_ns)
        if closed:
            parts.append(_own_steps(closed, engine, where))
        elif engine:
            parts.append(_engine_steps(engine))
    if not parts:
        return filled(Steps), tuple(cautions)
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    return Steps(**columns), tuple(cautions)


def _own_steps(own: Sequence[Range], engine: Sequence[Range], where: str) -> Steps:
    """Steps from ``perfgate.step.N``; what vLLM's ranges inside one say is its kind."""
    matches = [STEP.fullmatch(one.name) for one in own]
    index = [int(match[1]) for match in matches if match]
    if len(set(index)) < len(index):
        twice = next(number for number in index if index.count(number) > 1)
        text = f"a process has perfgate.step.{twice} twice"
        raise RecordError(text, where=where, remedy="Trace one run at a time.")
    starts = np.array([one.start_ns for one in engine], np.int64)
    kinds = []
    for one, match in zip(own, matches, strict=True):
        first, last = np.searchsorted(starts, (one.start_ns, one.end_ns or 0))
        told = match[2] if match else None
        kinds.append(KIND[told] if told else _kind(engine[first:last]))
    return _steps(own, index, kinds, [one.end_ns or 0 for one in own], own=True)


def _engine_steps(engine: Sequence[Range]) -> Steps:
    ends = [one.start_ns for one in engine[1:]] + [int(OPEN_END)]
    kinds = [_kind([one]) for one in engine]
    return _steps(engine, list(range(len(engine))), kinds, ends, own=False)


def _steps(ranges: Sequence[Range], index: list[int], kinds: list[int], ends: list[int], *, own: bool) -> Steps:
    """Steps of one process; the last of those from vLLM's own ranges has no end."""
    complete = np.ones(len(ranges), bool)
    complete[-1] = own
    return filled(
        Steps,
        index=np.array(index),
        kind=np.array(kinds),
        start_ns=np.array([one.start_ns for one in ranges]),
        end_ns=np.array(ends),
        process=np.array([one.process for one in ranges]),
        complete=complete,
        own=np.full(len(ranges), own),
    )


def _kind(engine: Sequence[Range]) -> int:
    """What vLLM says of a step: requests in prefill (context) and in decode (generation)."""
    counts = [(int(match[1]), int(match[2])) for match in (EXECUTE.fullmatch(one.name) for one in engine) if match]
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
    found = [(one, match[1]) for one in ranges if one.end_ns is not None and (match := LAYER.search(one.name))]
    if not found:
        return None
    found.sort(key=lambda pair: (pair[0].process, pair[0].start_ns, -(pair[0].end_ns or 0)))
    outer: list[tuple[Range, str]] = []
    for one, layer in found:  # a layer's own modules lie inside its range and say the same
        last = outer[-1][0] if outer else None
        if last is None or last.process != one.process or one.start_ns >= (last.end_ns or 0):
            outer.append((one, layer))
    rows = _spans_at(
        np.array([one.process for one, _ in outer], np.int16),
        np.array([one.start_ns for one, _ in outer], np.int64),
        np.array([one.end_ns for one, _ in outer], np.int64),
        process,
        time_ns,
    )
    number = np.array([int(layer) for _, layer in outer] + [NONE], np.int16)
    return number[rows]


def _spans_at(  # three columns of spans, two of what is looked up
    owner: NDArray[np.int16],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    process: NDArray[np.int16],
    time_ns: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The last span of one's process that began by a time, where it had not ended; spans are sorted by both."""
    found = np.full(len(time_ns), NONE, np.int32)
    for one, at in itertools.product(np.unique(owner), range(0, len(time_ns), _PART_ROWS)):
        first, beyond = np.searchsorted(owner, (one, one + 1))
        part = slice(at, at + _PART_ROWS)  # in parts, so that what is worked on stays small
        rows = np.flatnonzero((process[part] == one) & (time_ns[part] != NO_TIME)) + at
        place = np.searchsorted(starts[first:beyond], time_ns[rows], side="right") - 1 + first
        inside = (place >= first) & (time_ns[rows] <= ends[np.maximum(place, first)])
        found[rows[inside]] = place[inside]
    return found
