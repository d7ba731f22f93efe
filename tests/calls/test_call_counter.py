"""What the counter in a subject's process counts, under each Python on PATH that a subject may have."""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from perfgate.capture.worker import WORKER

COUNTER = str(WORKER.parents[1] / "calls" / "call_counter.py")
PROGRAM = """
import importlib.machinery, json, sys, threading, time, types

module = types.ModuleType("call_counter")
importlib.machinery.SourceFileLoader("call_counter", sys.argv[1]).exec_module(module)
counter = module.CallCounter()


class Table:
    def look_up(self, key):
        return key


def with_loop(count):
    while count:
        count -= 1


def with_writes(count):
    table = {}
    for number in range(count):
        table[number] = number


def with_calls(count):
    table = Table()
    for number in range(count):
        table.look_up(number)


def with_c_calls(count):
    for _ in range(count):
        len("text")


def with_generator(count):
    return sum(number for number in range(count))


def with_error(count):
    for _ in range(count):
        try:
            int("none")
        except ValueError:
            pass


class Strange:
    @property
    def __class__(self):
        raise ReferenceError("nobody may ask")

    def __getattr__(self, name):
        raise ReferenceError(name)

    def __call__(self):
        pass


def with_strange(count):
    strange = Strange()
    for _ in range(count):
        strange()


def with_wait(count):
    wait = threading.Lock()
    wait.acquire()
    wait.acquire(timeout=0.002)


def with_sleep(count):
    time.sleep(0.002)


going, done = threading.Event(), threading.Event()


def wait_and_work():
    for _ in range(3):
        going.wait()
        going.clear()
        with_loop(7)
        done.set()


threading.Thread(target=wait_and_work, daemon=True).start()


def wake():
    done.clear()
    going.set()
    done.wait()


def step():
    for function in (with_loop, with_writes, with_calls, with_c_calls, with_generator, with_error, with_strange,
                     with_wait, with_sleep):
        function(100)


counted = counter.around(step)
counted()
counted()
report = counter.report(1)
woken = counter.around(wake)
woken()
woken()
woken()
heard = counter.report(1)


def disturb():
    if hasattr(sys, "monitoring"):
        sys.monitoring.set_events(counter.instrument.tool, 0)
    else:
        sys.settrace(None)
    with_loop(100)


def disturb_threads():
    threading.settrace(None)


said = []
for function in (disturb, disturb if hasattr(sys, "monitoring") else disturb_threads):
    disturbed = counter.around(function)
    try:
        disturbed()
    except RuntimeError as error:
        said.append(str(error))
    counter.report(1)
names = [module.plain(name) for name in json.loads(sys.argv[2])]
print(json.dumps({"names": names, "report": report, "woken": heard, "disturbed": said, "off": sys.gettrace() is None}))
"""
NAMES = {
    "tasks.cuxguxa3fjiy3mbp6rbfy7spv4wzsfz44hqntq33y437ete2u6j3.Runner.call": "tasks.Runner.call",
    "c2miwhsjpagxuu34qlflqwsr5l3psqz2ajfk4y7d6mo2ep6et22r.kernel.kernel": "kernel.kernel",
    "torch._ops._C.pybind11_detail_function_record_v1_system_libstdcpp_gxx_abi_1.onednn_mm": "torch._ops._C.onednn_mm",
    "torch._ops.vllm.pybind11_detail_function_record_v1_system.": "torch._ops.vllm",
    "__compiled_fn_1_5f0c2a77_90ab_4cde_8f01_23456789abcd": "__compiled_fn_1_",
    "vllm.Scheduler.schedule": "vllm.Scheduler.schedule",
    "dict.get": "dict.get",
    ":": ":",
    "long" * 1000: "long" * 125,
}
"""Names that a process gives, and what is kept of them."""
INTERPRETERS = ["python3.10", "python3.11", "python3.12", "python3.13", "python3.14"]


@pytest.fixture(scope="module", params=INTERPRETERS)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program counts under an interpreter."""
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = sys.executable if request.param == own else shutil.which(request.param)
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no {request.param} on PATH")
    program = Path(tmp_path_factory.mktemp("counter")) / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [python, str(program), COUNTER, json.dumps([*NAMES])], capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def counts(said: dict[str, Any], name: str, what: str) -> list[int]:
    """Of a function in the steps before the second and from there on."""
    found: list[int] = said["report"]["functions"][f"__main__.{name}"].get(what, [0, 0])
    return found


def test_every_kind_of_work_shows(said: dict[str, Any]) -> None:
    """Loops show in lines, calls in the callee, C calls in their caller; each step has the same."""
    assert min(said["report"]["calls"]) >= 400
    assert [counts(said, name, "()") for name in ("with_loop", "with_calls")] == [[1, 1]] * 2
    for name in ("with_loop", "with_writes"):
        first, second = counts(said, name, ":")
        assert first == second >= 200
    assert counts(said, "with_c_calls", "builtins.len") == [100, 100]
    callee = "look_up" if said["report"]["python"] == "3.10" else "Table.look_up"  # code has no longer name before 3.11
    assert counts(said, callee, "()") == [100, 100]
    generator = [name for name in said["report"]["functions"] if name.endswith("<genexpr>")]
    assert said["report"]["functions"][generator[0]]["()"] == [101, 101]
    assert len(counts(said, "with_error", ":")) == 2
    strange = "__call__" if said["report"]["python"] == "3.10" else "Strange.__call__"
    assert counts(said, strange, "()") == [100, 100]


def test_another_thread_counts(said: dict[str, Any]) -> None:
    """A thread that was started after the counter is counted while a step runs; all later steps are one sum."""
    assert len(said["woken"]["calls"]) == 3
    assert said["woken"]["functions"]["__main__.with_loop"]["()"] == [1, 2]


def test_what_the_thread_of_the_steps_waits_for_counts(said: dict[str, Any]) -> None:
    """A sleep, and a lock until its timeout, are as long for the step as work is."""
    waited = said["report"]["functions"]["__main__.with_wait"]
    ((_, last),) = (counted for what, counted in waited.items() if what.startswith("~") and "acquire" in what)
    assert last >= 2_000_000
    assert min(counts(said, "with_sleep", "~time.sleep")) >= 2_000_000


def test_only_work_counts_where_a_device_or_the_next_step_is_waited_for() -> None:
    """How long that is tells of the device or of the thread of the steps, no matter which function waits."""
    counter: Any = types.ModuleType("call_counter")
    importlib.machinery.SourceFileLoader("call_counter", COUNTER).exec_module(counter)
    synchronize = type("_CudaEventBase.synchronize", (), {})()
    took = {}
    for steps, called in ((True, synchronize), (True, time.sleep), (False, time.sleep)):
        thread = counter.ThreadCounts({}, steps=steps)
        thread.enter_c("step", called)
        time.sleep(0.002)
        thread.leave_c()
        (took[steps, called],) = (ns for (_, what), ns in thread.counts.items() if what.startswith("~"))

    assert [ns < 2_000_000 for ns in took.values()] == [True, False, True]


def test_a_step_that_takes_the_counting_away_is_an_error(said: dict[str, Any]) -> None:
    """A debugger or a measure of coverage in the engine would hide whatever runs after it."""
    assert len(said["disturbed"]) == 2
    assert all("away from what counts its calls" in text for text in said["disturbed"])


def test_the_counter_leaves_no_trace_of_itself(said: dict[str, Any]) -> None:
    """None of its own functions is counted, and nothing is left switched on between steps."""
    assert not [name for name in said["report"]["functions"] if name.startswith(("call_counter", "threading"))]
    assert said["off"]


def test_costs_and_times_are_plausible(said: dict[str, Any]) -> None:
    """A line takes nanoseconds, and only C functions that call back no Python are timed."""
    costs = said["report"]["costs"]
    assert all(1_000 <= costs[name] <= 1_000_000 for name in ("line", "call", "c_call"))
    assert said["report"]["instrument"] == ("settrace" if said["report"]["python"] < "3.12" else "monitoring")
    assert costs["timing"] >= 1_000
    assert counts(said, "with_c_calls", "#builtins.len") == [100, 100]
    assert min(counts(said, "with_c_calls", "~builtins.len")) > 0
    assert counts(said, "with_generator", "#builtins.sum") == [0, 0]


def test_names_say_which_function_it_is(said: dict[str, Any]) -> None:
    """What another process, or another compiler, would name otherwise is left out."""
    assert said["names"] == [*NAMES.values()]
