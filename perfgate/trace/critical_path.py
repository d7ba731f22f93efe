"""What bounds a step: the chain of host and device work in which nothing waits, and what each part of it would gain.

A step lasts from its first kernel to that of its successor, and to the end of its own work where it has none. What
happened before is done. Within this time the network of :mod:`perfgate.trace.longest_path` has these edges:

- a kernel, copy or memset takes its time. It begins after the one before it in its stream has ended (or begun, where
  both ran at once) and after the call that launched it;
- a thread of the host makes one call after the other; what it does between two calls is code of the host, but where it
  makes none for long and another thread does, it goes on after that one;
- a call that waits returns after the work that it waited for.

A trace does not name what a call or a stream waited for, so that is taken from times. A wait is for the work that ended
last before it returned, a copy to the host if one ended shortly before. Work that began late, although its stream was
free and its launch long past, began after what ended last in another stream. Of all that a piece of work began after,
the last carries the delay that was seen, a launch the least delay of any, and the others none. So the longest path is
as long as the step, and what a part would gain is the most that it can gain: what else a piece of work would have had
to wait for, had it begun earlier, is not in a trace.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfgate.errors import UsageError
from perfgate.trace.kernel_table import NONE
from perfgate.trace.launch_queue import find_launches
from perfgate.trace.longest_path import Network, longest_path
from perfgate.trace.selection import Selection
from perfgate.trace.step_timeline import CALL_PARTS, PathPart, Spans, Timeline, Window, timeline, windows

COINCIDENCE_NS = 2000
"""A shorter delay of a kernel needs no cause: back to back they are one to two microseconds apart."""
UNEXPLAINED_NS = 50_000
"""A longer one after a kernel of the same stream has another cause, which the trace does not show."""
SILENT_NS = 1_000_000
"""A thread that makes no call for longer, while another one makes some, waits for that one: a backward pass, tokens."""
RETURN_NS = 50_000
"""A copy to the host that ended so shortly before a wait returned is what it waited for: the tokens."""
MOST_STEPS = 256
"""Steps whose path is looked for, evenly spread where there are more."""
MOST_PIECES = 500_000
"""Calls and pieces of work within one step: some ten seconds and half a gibibyte."""

CODE = PathPart("host", "code between calls")
LAUNCH = PathPart("host", "launch on its way")
RETURN = PathPart("host", "return from a wait")
BETWEEN = PathPart("gap", "between kernels")
ACROSS = PathPart("gap", "after another stream")
UNKNOWN = PathPart("gap", "cause not recorded")
_WAIT, _COPY = CALL_PARTS["synchronise"], CALL_PARTS["copy"]
_TO_HOST = ("copy d2h", "copy d2h-pageable")


class Piece(NamedTuple):
    """A stretch of a path.

    Args:
        begin_ns: When it begins, from the beginning of the step.
        stream: The stream of work; ``None`` of anything else.
    """

    part: PathPart
    begin_ns: int
    time_ns: int
    stream: int | None = None


@dataclass(frozen=True)
class StepPath:
    """The critical path of a step.

    Args:
        pieces: The path from the beginning on; what takes no time is left out. They add up to the step.
        in_step_ns: How long each part took in the step, on the path or not.
        gains_ns: By how much the step would be shorter, at most, if a part took no time, for each part on the path.
    """

    window: Window
    pieces: tuple[Piece, ...]
    in_step_ns: Counter[PathPart]
    gains_ns: dict[PathPart, int]

    @property
    def length_ns(self) -> int:
        """The length of the path, which is that of the step."""
        return self.window.end_ns - self.window.begin_ns

    def time_by_where(self) -> Counter[str]:
        """How much of the path is where, in nanoseconds."""
        sums = Counter[str]()
        for piece in self.pieces:
            sums[piece.part.where] += piece.time_ns
        return sums


def critical_paths(selection: Selection) -> list[StepPath]:
    """The path of each step selected, of at most :data:`MOST_STEPS`; none where the trace holds no calls of the host.

    Raises:
        UsageError: A step holds more than :data:`MOST_PIECES` calls and pieces of work.
    """
    trace = selection.trace
    launches = find_launches(trace)
    if not len(launches):
        return []
    floor_ns = int(launches.delay_ns[launches.late].min(initial=UNEXPLAINED_NS)) if launches.late.any() else 0
    chosen = [window for window in windows(selection) if window.device != NONE]
    if len(chosen) > MOST_STEPS:
        chosen = [chosen[row] for row in np.linspace(0, len(chosen) - 1, MOST_STEPS).astype(int).tolist()]
    lines = {process: timeline(trace, process) for process in {window.process for window in chosen}}
    return [_StepNetwork(lines[window.process], window, floor_ns).path() for window in chosen]


class _Work(NamedTuple):
    """A piece of work that has begun: its times, the nodes of both, its part, and the call that launched it."""

    end_ns: int
    start_ns: int
    begun: int
    over: int
    part: int
    key: int


class _Cause(NamedTuple):
    """What a piece of work began after: when that let it begin, when it was, its node, and what a delay after it is."""

    ready_ns: int
    time_ns: int
    node: int
    part: PathPart


class _StepNetwork:
    """The network of one step; times are from the step's beginning on."""

    def __init__(self, line: Timeline, window: Window, floor_ns: int) -> None:
        self.line, self.window, self.floor_ns = line, window, floor_ns
        self.network = Network()
        self.parts = [*line.parts, CODE, LAUNCH, RETURN, BETWEEN, ACROSS, UNKNOWN]
        self.number = {part: n for n, part in enumerate(self.parts)}
        self.lane_of: dict[int, int] = {}
        """The lane of work, by the number of its edge."""
        self.called: dict[int, tuple[int, int]] = {}
        """When each launching call began, and its node."""
        self.ended: defaultdict[int, list[_Work]] = defaultdict(list)
        """The work of each lane that the step holds, in order of its end."""
        self.waits: list[tuple[int, int, int]] = []
        """The edge of each call that may wait, and when it began and returned."""

    def path(self) -> StepPath:
        """Its longest path.

        Raises:
            UsageError: There is too much in it.
        """
        window = self.window
        work, calls = (spans.between(window.begin_ns, window.end_ns) for spans in (self.line.work, self.line.calls))
        if len(work) + len(calls) > MOST_PIECES:
            text = f"a step holds {len(work) + len(calls)} calls and pieces of work, more than {MOST_PIECES}"
            raise UsageError(f"{text}: choose a shorter one with --step")
        self._add_calls(calls)
        end = self._add_work(work)
        self._add_returns()
        longest = longest_path(self.network, end)
        pieces, begin_ns = [], 0
        for edge in longest.edges:
            time_ns, lane = self.network.times[edge], self.lane_of.get(edge)
            if time_ns:
                stream = None if lane is None else self.line.streams[lane][1]
                pieces.append(Piece(self.parts[self.network.parts[edge]], begin_ns, time_ns, stream))
            begin_ns += time_ns
        in_step = Counter[PathPart]()
        for number, time_ns in zip(self.network.parts, self.network.times, strict=True):
            in_step[self.parts[number]] += time_ns
        gains = {self.parts[number]: gain for number, gain in longest.gains.items()}
        return StepPath(window, tuple(pieces), in_step, gains)

    def _edge(self, tail: int, head: int, time_ns: int, part: PathPart) -> None:
        self.network.edge(tail, head, time_ns, self.number[part])

    def _rows(self, spans: Spans) -> Iterator[tuple[int, int, int, int, int]]:
        """Start, end, key, lane and part of each, within the step's time."""
        begin_ns, end_ns = self.window.begin_ns, self.window.end_ns
        starts, ends = (np.clip(times, begin_ns, end_ns) - begin_ns for times in (spans.start_ns, spans.end_ns))
        return zip(*(c.tolist() for c in (starts, ends, spans.key, spans.lane, spans.part)), strict=True)

    def _add_calls(self, calls: Spans) -> None:
        """Each thread's calls, and its code between them; a call within another one is a point of it."""
        network = self.network
        outer: dict[int, tuple[int, int, int, int, int]] = {}
        for start, end, key, thread, part in self._rows(calls):
            begun = network.node()
            before, begun_before, until, returned, enclosing = outer.get(thread, (0, 0, 0, 0, 0))
            if start < until:
                network.edge(begun_before, begun, start - before, enclosing)
            else:
                others = [row for other, row in outer.items() if other != thread and until < row[2] <= start]
                if others and start - until > SILENT_NS:
                    _, _, until, returned, _ = max(others, key=lambda row: row[2])
                self._edge(returned, begun, start - until, CODE)
                returned = network.node()
                if self.parts[part] in (_WAIT, _COPY):
                    self.waits.append((len(network.times), start, end))
                network.edge(begun, returned, end - start, part)
                outer[thread] = (start, begun, end, returned, part)
            if key != NONE:
                self.called[key] = (start, begun)

    def _add_work(self, work: Spans) -> int:
        """Each piece of work, by what it began after; returns the node with which the step ends."""
        network, window = self.network, self.window
        length, last = window.end_ns - window.begin_ns, 0
        running: dict[int, _Work] = {}
        for start, end, key, lane, part in self._rows(work):
            here = self.line.streams[lane][0] == window.device
            if start >= length and window.successor:
                if here and self.parts[part].name != NONE:  # the kernel with which the next step begins
                    return self._begin(start, key, lane, running.get(lane))
                continue
            begun = self._begin(start, key, lane, running.get(lane)) if start else 0
            over = network.node()
            self.lane_of[len(network.times)] = lane
            network.edge(begun, over, end - start, part)
            running[lane] = _Work(end, start, begun, over, part, key)
            insort(self.ended[lane], running[lane])
            if here and end == length:
                last = over
        return last

    def _begin(self, start_ns: int, key: int, lane: int, before: _Work | None) -> int:
        """The node with which a piece of work begins, after all that it had to wait for."""
        causes = [_Cause(0, 0, 0, UNKNOWN)]
        if (done := _last_ended(self.ended[lane], start_ns)) is not None:
            explained = start_ns - done.end_ns <= UNEXPLAINED_NS
            causes.append(_Cause(done.end_ns, done.end_ns, done.over, BETWEEN if explained else UNKNOWN))
        if before is not None and before.end_ns > start_ns:
            causes.append(_Cause(before.start_ns, before.start_ns, before.begun, self.parts[before.part]))
        if key in self.called and (before is None or before.key != key):  # a graph's first; the rest follow from it
            called_ns, node = self.called[key]
            causes.append(_Cause(min(called_ns + self.floor_ns, start_ns), called_ns, node, LAUNCH))
        ready_ns = max(cause.ready_ns for cause in causes)
        if start_ns - ready_ns > COINCIDENCE_NS:
            others = (_last_ended(work, start_ns) for other, work in self.ended.items() if other != lane)
            late = [work for work in others if work is not None and work.end_ns > ready_ns]
            causes += [_Cause(work.end_ns, work.end_ns, work.over, ACROSS) for work in late]
        binding = max(reversed(causes), key=lambda cause: cause.ready_ns)
        begun = self.network.node()
        for cause in causes:
            waited_ns = (start_ns if cause is binding else cause.ready_ns) - cause.time_ns
            if waited_ns or cause.node:
                self._edge(cause.node, begun, waited_ns, cause.part)
        return begun

    def _add_returns(self) -> None:
        """Let calls that waited return after the work that they waited for, and take no time of their own."""
        network = self.network
        by_key = {work.key: work for lane in self.ended.values() for work in lane if work.key != NONE}
        calls = {node: key for key, (_, node) in self.called.items()}
        for edge, start_ns, end_ns in self.waits:
            if self.parts[network.parts[edge]] == _COPY:
                work = by_key.get(calls.get(network.tails[edge], NONE))
            else:
                work = self._awaited(end_ns)
            if work is not None and start_ns < work.end_ns <= end_ns:
                network.times[edge] = 0
                self._edge(work.over, network.heads[edge], end_ns - work.end_ns, RETURN)

    def _awaited(self, end_ns: int) -> _Work | None:
        """The work that a wait which returned then was for."""
        last = [work for lane in self.ended.values() if (work := _last_ended(lane, end_ns)) is not None]
        copies = [work for work in last if self.parts[work.part].what in _TO_HOST and end_ns - work.end_ns <= RETURN_NS]
        return max(copies or last, default=None)


def _last_ended(lane: list[_Work], time_ns: int) -> _Work | None:
    """The work of a lane that ended last, by then."""
    row = bisect_right(lane, time_ns, key=lambda work: work.end_ns)
    return lane[row - 1] if row else None
