"""What the host runs in each step of an engine, counted: Python functions, their lines, and C functions they call.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. From 3.12 on ``sys.monitoring`` tells of every thread; before, ``sys.settrace`` and ``sys.setprofile`` do,
in this thread and in those started after :class:`CallCounter` was made. Calls alone would not show a loop or
``d[k] = v``, so lines are counted as well: each line that begins, and each jump back.

How long an iteration takes while it is counted says nothing. What a line and a call cost is therefore found out before,
without counting, on a loop of known length; how long a C function takes that calls back no Python is its time while
counted, less what counting adds to one that does nothing. Waiting for the device is not work of the host.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS, LINES = "()", ":"
"""What is counted of a function beside the C functions that it calls, which go by their names."""
TIMED, TOOK = "#", "~"
"""Before the name of a C function: its calls that called back no Python, and the nanoseconds that these took."""
Key = tuple[str, str]
"""A function's name, and what is counted of it."""
ROUNDS, LENGTH = 40, 500
"""Of the loops that tell what a line and a call cost."""
PYTHON_FUNCTIONS = (types.FunctionType, types.MethodType)
C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
               types.MethodWrapperType, types.ClassMethodDescriptorType, type)  # fmt: skip
NAMELESS = re.compile(
    r"(?<![a-z0-9])(c[a-z2-7]{51}|0x[0-9a-f]+|pybind11_detail_function_record_\w+)(?![a-z0-9])\.?"
    r"|(?<=_)[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}"
)
"""Inductor names a module by the digest of its code, dynamo a function by a number drawn at random."""
LONGEST = 500
BESIDE = ("capture/vllm_batch.py", "capture/vllm_worker.py")
"""Files of perfgate that run between steps, as this one does."""
FOR_DEVICE, SHORT_NS = "synchronize", 20_000
"""In the names of C functions that wait for the device; and up to where waits count: to ask takes nearly as long."""
clock, worked = time.perf_counter_ns, time.thread_time_ns


class ThreadCounts:
    """What one thread has run so far.

    Args:
        names: Names of functions by the identity of their code, which is kept so that none takes its place.
        steps: Whether it is the thread of the steps, for which the others wait.
    """

    def __init__(self, names: dict[int, tuple[str, types.CodeType]], *, steps: bool) -> None:
        self.names, self.steps = names, steps
        self.counts: dict[Key, int] = {}
        self.open: list[list[Any]] = []
        self.local: dict[int, Callable[..., Any]] = {}

    def add(self, name: str, what: str, many: int = 1) -> None:
        """So many more."""
        key = (name, what)
        self.counts[key] = self.counts.get(key, 0) + many

    def enter(self, name: str) -> None:
        """A Python function begins: whichever C function is open has called it."""
        if self.open:
            self.open[-1][2] = False
        self.add(name, CALLS)

    def enter_c(self, name: str, called: Any) -> None:
        """A C function begins."""
        callee = name_of(called)
        self.add(name, callee)
        self.open.append([name, callee, True, None if self.steps and FOR_DEVICE not in callee else worked(), clock()])

    def leave_c(self) -> None:
        """The C function that began last has ended."""
        now_ns = clock()
        if not self.open:
            return
        name, callee, is_leaf, worked_ns, begin_ns = self.open.pop()
        if is_leaf:
            took_ns = now_ns - begin_ns
            if worked_ns is not None and took_ns > SHORT_NS:
                took_ns = min(took_ns, worked() - worked_ns)
            self.add(name, TIMED + callee)
            self.add(name, TOOK + callee, took_ns)

    def function(self, code: types.CodeType, module: Any) -> str:
        """The name of a function, with its module's where that is known."""
        entry = self.names.get(id(code))
        if entry is None:
            qualname = getattr(code, "co_qualname", code.co_name)  # from 3.11 on
            entry = self.names[id(code)] = (f"{module}.{qualname}" if module else qualname, code)
        return entry[0]

    def trace(self, frame: Any, _event: str, _: Any) -> Callable[..., Any]:
        """For ``sys.settrace``: a function begins, or a generator goes on."""
        code = frame.f_code
        name = self.function(code, frame.f_globals.get("__name__"))
        self.enter(name)
        local = self.local.get(id(code))
        if local is None:
            key, counts = (name, LINES), self.counts

            def local(_frame: Any, event: str, _: Any) -> Any:
                if event == "line":
                    counts[key] = counts.get(key, 0) + 1
                return self.local[id(code)]

            self.local[id(code)] = local
        return local

    def profile(self, frame: Any, event: str, called: Any) -> None:
        """For ``sys.setprofile``: a C function begins or ends."""
        if event == "c_call":
            self.enter_c(self.function(frame.f_code, frame.f_globals.get("__name__")), called)
        elif event in ("c_return", "c_exception"):
            self.leave_c()


def name_of(called: Any) -> str:
    """A C function's name: ``dict.get``, ``builtins.len``, ``torch._C._nn.linear``."""
    # Whatever else can be called may run code of its own when it is asked for a name, or its class.
    named: Any = called if issubclass(type(called), C_FUNCTIONS) else type(called)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if isinstance(module, str) and module else str(named.__qualname__)


def plain(name: str) -> str:
    """A name without what does not tell the function: digests of generated code, addresses, a compiler's tags."""
    return NAMELESS.sub("", name).strip(".")[:LONGEST]


class Traced:
    """Counts by ``sys.settrace`` and ``sys.setprofile``, thread by thread.

    Args:
        counts_of: Those of the thread that asks.
    """

    name = "settrace"

    def __init__(self, counts_of: Callable[[], ThreadCounts]) -> None:
        self.counts_of = counts_of
        threading.settrace(self.in_a_new_thread)
        threading.setprofile(lambda *_: None)  # a thread's first call is traced, and then it has its own

    def in_a_new_thread(self, frame: Any, event: str, arg: Any) -> Any:
        """The first call of a thread: from here on it counts by itself."""
        self.begin()
        return self.counts_of().trace(frame, event, arg)

    def begin(self) -> None:
        """Count in this thread."""
        counts = self.counts_of()
        counts.open.clear()
        sys.setprofile(counts.profile)
        sys.settrace(counts.trace)

    def end(self) -> bool:
        """Stop counting in this thread, the others go on; tell whether all was ours until now."""
        now = (sys.gettrace(), sys.getprofile())
        sys.settrace(None)
        sys.setprofile(None)
        counts = self.counts_of()
        return now == (counts.trace, counts.profile) and threading.gettrace() == self.in_a_new_thread

    def finish(self) -> None:
        """The others go on for as long as they live."""


class Monitored:
    """Counts by ``sys.monitoring``, which tells of all threads, and between steps as well: others go on meanwhile.

    Args:
        counts_of: Those of the thread that asks.
    """

    name = "monitoring"

    def __init__(self, counts_of: Callable[[], ThreadCounts]) -> None:
        self.counts_of = counts_of
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        events = monitoring.events
        self.monitoring = monitoring
        self.tool = next(tool for tool in range(5, -1, -1) if monitoring.get_tool(tool) is None)
        monitoring.use_tool_id(self.tool, "perfgate")
        callbacks = {
            events.PY_START: self.start, events.PY_RESUME: self.start, events.LINE: self.line,
            events.JUMP: self.jump, events.CALL: self.call, events.C_RETURN: self.end_c, events.C_RAISE: self.end_c,
        }  # fmt: skip
        for event, callback in callbacks.items():
            monitoring.register_callback(self.tool, event, callback)
        self.events = sum(callbacks)
        self.left_out: frozenset[str] = frozenset()

    def named(self, counts: ThreadCounts, code: types.CodeType) -> str:
        """The name of the function whose code is running two frames up."""
        if (entry := counts.names.get(id(code))) is not None:
            return entry[0]
        frame: Any = sys._getframe(2)  # noqa: SLF001 (documented, though it has an underscore)
        return counts.function(code, frame.f_globals.get("__name__") if frame.f_code is code else None)

    def start(self, code: types.CodeType, _offset: int) -> Any:
        """A function begins, or a generator goes on."""
        if code.co_filename in self.left_out:
            return self.monitoring.DISABLE
        counts = self.counts_of()
        return counts.enter(self.named(counts, code))

    def line(self, code: types.CodeType, _line: int) -> Any:
        """A line begins."""
        if code.co_filename in self.left_out:
            return self.monitoring.DISABLE
        counts = self.counts_of()
        return counts.add(self.named(counts, code), LINES)

    def jump(self, code: types.CodeType, offset: int, destination: int) -> Any:
        """A loop within a line begins no line."""
        if code.co_filename in self.left_out or destination >= offset:
            return self.monitoring.DISABLE
        counts = self.counts_of()
        return counts.add(self.named(counts, code), LINES)

    def call(self, code: types.CodeType, _offset: int, called: Any, _first: Any) -> Any:
        """A call, of a C function unless it is known to be another."""
        if code.co_filename in self.left_out:
            return self.monitoring.DISABLE
        if issubclass(type(called), PYTHON_FUNCTIONS):
            return None
        counts = self.counts_of()
        return counts.enter_c(self.named(counts, code), called)

    def end_c(self, _code: types.CodeType, _offset: int, called: Any, _first: Any) -> None:
        """Some C function has ended."""
        if not issubclass(type(called), PYTHON_FUNCTIONS):
            self.counts_of().leave_c()

    def begin(self) -> None:
        """Count in every thread, from the first step of an iteration on."""
        self.counts_of().open.clear()
        if not self.monitoring.get_events(self.tool):
            self.monitoring.set_events(self.tool, self.events)
        self.told = self.monitoring.get_events(self.tool)

    def end(self) -> bool:
        """The others go on, and what runs between two steps in this thread is ours; tell whether it was heard."""
        return bool(self.told and self.told == self.monitoring.get_events(self.tool))

    def finish(self) -> None:
        """Stop counting."""
        self.monitoring.set_events(self.tool, 0)


class CallCounter:
    """Counts what every step runs; made before the engine starts its threads."""

    def __init__(self) -> None:
        self.plain = plain
        self.names: dict[int, tuple[str, types.CodeType]] = {}
        self.threads: dict[int, ThreadCounts] = {}
        self.first = threading.get_ident()
        self.instrument = Monitored(self.mine) if hasattr(sys, "monitoring") else Traced(self.mine)
        self.costs = self.calibrated()
        if isinstance(self.instrument, Monitored):  # the other one sees nothing of ours
            here = Path(CallCounter.__init__.__code__.co_filename)
            self.instrument.left_out = frozenset(map(str, (here, *(here.parents[1] / name for name in BESIDE))))

    def mine(self) -> ThreadCounts:
        """The counts of the thread that asks."""
        thread = threading.get_ident()
        if (counts := self.threads.get(thread)) is None:
            counts = self.threads[thread] = ThreadCounts(self.names, steps=thread == self.first)
        return counts

    def clear(self) -> None:
        """Begin an iteration."""
        self.before = self.totals()
        self.steps = 0
        self.table: dict[Key, dict[int, int]] = {}

    def totals(self) -> dict[Key, int]:
        """What all threads have run so far."""
        summed: dict[Key, int] = {}
        for counts in [*self.threads.values()]:
            summed |= {key: summed.get(key, 0) + count for key, count in counts.counts.copy().items()}
        return summed

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """``step``, counted from now on. When the collector sets in is not what runs, so it rests until the report."""
        self.clear()
        self.collecting = gc.isenabled()
        gc.disable()

        def counted() -> Any:
            self.instrument.begin()
            try:
                given = step()
            finally:
                ours = self.instrument.end()
                self.note()
            if not ours:
                raise RuntimeError(f"the step took {self.instrument.name} away from what counts its calls")
            return given

        return counted

    def note(self) -> None:
        """Write down what the step has added."""
        now = self.totals()
        for key, count in now.items():
            if count != self.before.get(key, 0):
                self.table.setdefault(key, {})[self.steps] = count - self.before.get(key, 0)
        self.before = now
        self.steps += 1

    def report(self, begin: int) -> dict[str, Any]:
        """Calls in each step; of each function what is counted, in the steps before ``begin`` and from there on."""
        self.instrument.finish()
        if self.collecting:
            gc.enable()
        functions: dict[str, dict[str, list[int]]] = {}
        calls = [0] * self.steps
        for (name, what), in_steps in self.table.items():
            if not name.startswith(f"{__name__}."):
                counts = functions.setdefault(plain(name), {}).setdefault(plain(what), [0, 0])
                for step, count in in_steps.items():
                    counts[step >= begin] += count
                    calls[step] += 0 if what.startswith((LINES, TIMED, TOOK)) else count
        self.table = {}
        for thread in [*self.threads.values()]:  # else what an iteration keeps would be counts of ours
            thread.counts.clear()
        python = ".".join(map(str, sys.version_info[:2]))
        return {"python": python, "instrument": self.instrument.name, "costs": self.costs, "calls": calls,
                "functions": functions}  # fmt: skip

    def calibrated(self) -> dict[str, int]:
        """Picoseconds of a line, of a method's call and of a C call beside their lines; and what timing a call adds."""
        loops = (lines, calls, c_calls)
        times = [(loop, clock(), loop(LENGTH), clock()) for loop in [*loops] * ROUNDS]
        took = {kind: min(end_ns - begin_ns for loop, begin_ns, _, end_ns in times if loop is kind) for kind in loops}
        counted, timed_ns = {}, []
        for loop in (lines, calls, *[c_calls] * 10):
            self.threads.clear()
            self.instrument.begin()
            loop(LENGTH)
            self.instrument.end()
            self.instrument.finish()
            counted[loop] = sum(count for (_, what), count in self.totals().items() if what == LINES)
            timed_ns += [ns for (_, what), ns in self.totals().items() if what == f"{TOOK}dict.get"]
        self.threads.clear()
        line = 1000 * took[lines] // counted[lines]
        call, c_call = ((1000 * took[loop] - counted[loop] * line) // (4 * LENGTH) for loop in (calls, c_calls))
        timing = 1000 * min(timed_ns) // (4 * LENGTH) - max(c_call, 0)
        return {"line": max(line, 1), "call": max(call, line), "c_call": max(c_call, line), "timing": max(timing, 0)}


class Called:
    """Has a method, because most calls are of one."""

    def nothing(self, left: int) -> int:  # noqa: D102 (does what it says)
        return left


def lines(left: int) -> None:
    """Plain lines."""
    kept: dict[int, int] = {}
    while left:
        left -= 1
        kept[left & 7] = left


def calls(left: int) -> None:
    """The same with four calls in each round."""
    kept: dict[int, int] = {}
    called = Called()
    while left:
        left -= 1
        kept[left & 7] = left
        called.nothing(left)
        called.nothing(left)
        called.nothing(left)
        called.nothing(left)


def c_calls(left: int) -> None:
    """The same with four C calls in each round."""
    kept: dict[int, int] = {}
    while left:
        left -= 1
        kept[left & 7] = left
        kept.get(left)
        kept.get(left)
        kept.get(left)
        kept.get(left)
