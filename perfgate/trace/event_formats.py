"""Files of JSON events, told apart by what is in them: one reader a format, each giving the events of a recording.

**Ascend**: the Chrome trace of CANN's msprof and of torch_npu's profiler. ``msprof_*.json`` and ``trace_view.json`` are
lists of events in processes named by metadata: ``Ascend Hardware`` has the tasks of each stream, ``Communication``
(``HCCL`` before CANN 8) the collectives of each group and below them their parts, ``CANN`` the calls of the host,
``Overlap Analysis`` the profiler's own unions of computing and communication (Huawei, CANN Community Edition 9.0,
"Profile Data File References"). A flow ``HostToDevice`` leads from the launch of a task to its start; where there is
none, the call has the task's ``connection_id``. Collectives count whole; tasks that only wait or mark are left out.

**ONNX Runtime**: Chrome events, ``Session`` events with a ``model_run`` for each run, ``Node`` events whose
``..._kernel_time`` is an operator as the host saw it, and with a GPU's own profiling ``Kernel`` events
(onnxruntime/core/common/profiler_common.h). **TensorRT**: ``trtexec --exportProfile`` writes a list: how many runs
there were, then each layer with its times over them in milliseconds. Neither says more; what is missing is a caution.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.chrome_events import Event, complete_events, load_events, microseconds
from perfgate.trace.kernel_table import NONE
from perfgate.trace.limits import MAX_DURATION_NS
from perfgate.trace.torch_profiler import Recording, read_kineto
from perfgate.units import format_ns

_HARDWARE, _CANN, _OVERLAP = "Ascend Hardware", "CANN", "Overlap Analysis"
_COLLECTIVES = ("Communication", "HCCL")
_GROUP = re.compile(r"Group .*Communication|^Communication$")
_NO_KERNEL = re.compile(
    r"EVENT|NOTIFY|PLACE_HOLDER|WRITE_VALUE|MODEL_|PROFILING|LABEL|STREAM|RDMA|BARRIER|FLIP|MAINTENANCE|CCU|CAPTURE"
)
_COPY = re.compile(r"MEMCPY|SDMA")
_KERNEL = re.compile(r"AI_?(CORE|CPU|VECTOR|VEC|V\b|C\b)|MIX|DSA|KERNEL|DVPP|^Other$")
_COUNTER = re.compile(r"(?<=\w)_{1,2}\d+(?:_\d+)*$|(?:(?<=V\d)|(?<![V\d_]))\d+$")
"""CANN numbers an operator's instances: ``Add12``, ``trans_Cast_22``, ``hcom_allReduce__428_0_1``, not ``MatMulV2``."""

_STREAM_OF_GROUPS = 1 << 20
"""Collectives are recorded by group, not by stream."""

_DIFFERS = 0.01


def is_ascend(rows: list[dict[str, Any]]) -> bool:
    """Whether a process of these events is Ascend's hardware, or its CANN."""
    return any(name in (_HARDWARE, _CANN) for name in _process_names(rows).values())


def read_ascend(content: dict[str, Any], file: Path) -> Recording:
    """The events of an Ascend trace: kernels and collectives, copies, calls, ranges.

    Raises:
        RecordError: No task of the hardware is in it.
    """
    return _Ascend(content["traceEvents"], complete_events(content, file)).recording(file)


class _Ascend:
    """One trace, its events by the process that they are in."""

    def __init__(self, rows: list[dict[str, Any]], events: list[Event]) -> None:
        self.processes = _process_names(rows)
        self.threads = {
            (row.get("pid"), row.get("tid")): str(_argument(row, "name"))
            for row in rows
            if row.get("ph") == "M" and row.get("name") == "thread_name" and _hashable(row)
        }
        self.events = events
        self.launched_ns = _launches(rows)
        chips = sorted({event.pid for event in events if self._in(event, _HARDWARE)}, key=str)
        labels = {row.get("pid"): str(_argument(row, "labels")) for row in rows if _labels(row)}
        self.device = {pid: _number(labels.get(pid, ""), number) for number, pid in enumerate(chips)}

    def _in(self, event: Event, *names: str) -> bool:
        return self.processes.get(event.pid) in names

    def recording(self, file: Path) -> Recording:
        """See :func:`read_ascend`."""
        tasks = [event for event in self.events if self._in(event, _HARDWARE)]
        collectives = [e for e in self.events if self._in(e, *_COLLECTIVES) and self._is_group(e)]
        kernels = [event for event in tasks if _sort(event) == "kernel"]
        if collectives:  # on vector cores a collective is a task as well
            kernels = [event for event in kernels if not event.name.startswith(("hcom_", "aiv_"))]
        if not kernels and not collectives:
            text = f"is an Ascend trace without a kernel among {len(tasks)} tasks of {_HARDWARE}"
            raise RecordError(text, where=str(file), remedy="Collect it with task times: --task-time=l1, or Level1.")
        made = [*map(self._kernel, kernels), *self._groups(collectives)]
        made += [self._task(event, "gpu_memcpy") for event in tasks if _sort(event) == "copy"]
        made += [_host(event, "cuda_runtime") for event in self.events if self._in(event, _CANN)]
        made += [_host(event, "user_annotation") for event in self.events if self._is_range(event)]
        unknown = Counter(_type(event) for event in tasks if not _sort(event))
        return Recording(
            events=made,
            source="Ascend profiler",
            devices=dict.fromkeys(self.device.values(), "Ascend NPU"),
            cautions=(*_unknown(unknown), *self._differences(kernels, collectives)),
        )

    def _is_group(self, event: Event) -> bool:
        return bool(_GROUP.search(self.threads.get((event.pid, event.thread), ""))) or event.name.startswith("hcom_")

    def _is_range(self, event: Event) -> bool:
        """Whether it may name a step: a range in Python, operators aside."""
        here = self.processes.get(event.pid) not in (_HARDWARE, _CANN, _OVERLAP, *_COLLECTIVES)
        return here and event.category in ("cpu_op", "user_annotation", "") and not _OPERATOR.match(event.name)

    def _task(self, event: Event, category: str) -> Event:
        return self._as(event, category, event.name, self.device.get(event.pid, 0), event.thread)

    def _kernel(self, event: Event) -> Event:
        name = _COUNTER.sub("", event.name)
        return self._as(event, "kernel", name, self.device.get(event.pid, 0), event.thread)

    def _as(self, event: Event, category: str, name: str, device: int, stream: int | str) -> Event:
        detail: dict[str, Any] = {"device": device, "stream": stream if isinstance(stream, int) else NONE}
        detail |= {"correlation": event.detail.get("connection_id")}
        detail |= {"launched_ns": self.launched_ns.get((event.pid, event.thread, event.start_ns))}
        return Event(event.number, category, name, event.start_ns, event.end_ns, stream, device, detail)

    def _groups(self, collectives: list[Event]) -> Iterator[Event]:
        device = min(self.device.values(), default=0)
        groups = {key: n for n, key in enumerate(dict.fromkeys((e.pid, e.thread) for e in collectives))}
        for event in collectives:
            stream = _STREAM_OF_GROUPS + groups[event.pid, event.thread]
            yield self._as(event, "kernel", _COUNTER.sub("", event.name), device, stream)

    def _differences(self, kernels: list[Event], collectives: list[Event]) -> Iterator[Note]:
        """What the profiler's own unions say and the tasks of the file do not show."""
        for title, tasks in (("Computing", kernels), ("Communication", collectives)):
            said = [e for e in self.events if self._in(e, _OVERLAP) and e.name == title]
            said_ns, shown_ns = sum(e.end_ns - e.start_ns for e in said), _union_ns(tasks)
            if abs(said_ns - shown_ns) > _DIFFERS * said_ns:
                text = (
                    f"its Overlap Analysis has {format_ns(said_ns)} of {title.lower()}, its tasks have "
                    f"{format_ns(shown_ns)}: what differs is in no sum here"
                )
                yield Note(code="trace-damaged", text=text)


def _launches(rows: list[dict[str, Any]]) -> dict[tuple[Any, Any, int], int]:
    """When the task that starts at a process, thread and time was launched."""
    ends: dict[str, dict[Any, tuple[Any, Any, int]]] = {"s": {}, "f": {}}
    for row in rows:
        at = microseconds(row.get("ts")) if row.get("cat") == "HostToDevice" and row.get("ph") in ("s", "f") else None
        if at is not None and _hashable(row) and isinstance(row.get("id"), int | str):
            ends[row["ph"]][row["id"]] = row.get("pid"), row.get("tid"), round(at * 1000)
    return {end: ends["s"][flow][2] for flow, end in ends["f"].items() if flow in ends["s"]}


_OPERATOR = re.compile(r"\w+::|aclnn|Enqueue|Dequeue")


def _process_names(rows: list[dict[str, Any]]) -> dict[Any, str]:
    return {
        row.get("pid"): str(_argument(row, "name"))
        for row in rows
        if row.get("ph") == "M" and row.get("name") == "process_name" and _hashable(row)
    }


def _labels(row: dict[str, Any]) -> bool:
    return row.get("ph") == "M" and row.get("name") == "process_labels" and _hashable(row)


def _hashable(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(key), int | str | None) for key in ("pid", "tid"))


def _argument(row: dict[str, Any], key: str) -> Any:
    detail = row.get("args")
    return detail.get(key, "") if isinstance(detail, dict) else ""


def _number(label: str, otherwise: int) -> int:
    """The device that a label such as ``NPU 3`` names."""
    match = re.search(r"\bNPU\D{0,2}(\d{1,3})\b", label)
    return int(match[1]) if match else otherwise


def _type(event: Event) -> str:
    return str(event.detail.get("Task Type", "Other"))


def _sort(event: Event) -> str:
    """``kernel``, ``copy``, ``none`` where it computes nothing, or empty where its type is not known here."""
    kind = _type(event)
    if _COPY.search(kind):
        return "copy"
    if _NO_KERNEL.search(kind):
        return "none"
    return "kernel" if _KERNEL.search(kind) else ""


def _host(event: Event, category: str) -> Event:
    detail = {"correlation": event.detail.get("connection_id")} if category == "cuda_runtime" else {}
    return Event(event.number, category, event.name, event.start_ns, event.end_ns, event.thread, None, detail)


def _union_ns(events: Iterable[Event]) -> int:
    total, reached = 0, -(1 << 62)
    for event in sorted(events, key=lambda event: event.start_ns):
        total += max(event.end_ns - max(event.start_ns, reached), 0)
        reached = max(reached, event.end_ns)
    return total


def _unknown(types: Counter[str]) -> Iterator[Note]:
    if types:
        words = ", ".join(f"{kind[:60]} ({count} tasks)" for kind, count in types.most_common(3))
        text = f"tasks of the device are of types that are not known here and left out: {words}"
        yield Note(code="trace-damaged", text=text)


_NODE_TIME = "_kernel_time"
_LAYER = re.compile(r"layers?[._](\d{1,4})\b")
_PATH = re.compile(r"/(?:[\w.]+/)*([A-Za-z]\w*?)(?:_\d+)?(?=$|[\s,)+])")
_REGION = "{ForeignNode"
_DEVICE_TYPE = "ExecutionProvider"


def is_onnxruntime(rows: list[dict[str, Any]]) -> bool:
    """Whether a session of ONNX Runtime is among these events."""
    return any(row.get("cat") == "Session" and row.get("name") == "model_run" for row in rows) or any(
        row.get("cat") == "Node" and str(row.get("name", "")).endswith(_NODE_TIME) for row in rows
    )


def read_onnxruntime(content: dict[str, Any], file: Path) -> Recording:
    """Operators, or kernels where they were recorded; each ``model_run`` is a step.

    Raises:
        RecordError: An event has no name, or no time that a trace can have.
    """
    events = complete_events(content, file)
    runs = sorted((e for e in events if e.name == "model_run"), key=lambda event: event.start_ns)
    nodes = [e for e in events if e.category == "node" and e.name.endswith(_NODE_TIME)]
    kernels = [e for e in events if e.category == "kernel"]
    made = [_renamed(e, "user_annotation", f"perfgate.step.{n}", None) for n, e in enumerate(runs)]
    if kernels:
        made += [_on_device(event) for event in kernels]
        text = "kernels are recorded without their launching calls: a kernel's step is the one in which it started"
        return Recording(made, "ONNX Runtime", {0: "unknown GPU"}, (Note(code="trace-damaged", text=text),))
    made += [_renamed(e, "operator", str(e.detail.get("op_name") or e.name)) for e in nodes]
    providers = Counter(str(e.detail.get("provider", "unknown")).removesuffix(_DEVICE_TYPE) for e in nodes)
    where = ", ".join(f"{name[:40]} {count}" for name, count in providers.most_common(3))
    text = (
        f"times are of operators as the host saw them ({where}): the file holds no kernel, copy or call of a device, "
        "so an operator that only launches looks short"
    )
    named = {NONE: ", ".join(name[:40] for name, _ in providers.most_common(3))}
    return Recording(made, "ONNX Runtime", named, (Note(code="not-recorded", text=text),))


def is_tensorrt(rows: list[dict[str, Any]]) -> bool:
    """Whether this is a list of an engine's layers."""
    return any("averageMs" in row or "timeMs" in row for row in rows[:3])


def read_tensorrt(content: dict[str, Any], file: Path) -> Recording:
    """An engine's layers as one step, one after the other, each as long as its mean.

    Raises:
        RecordError: A layer has no name or no time.
    """
    rows = content["traceEvents"]
    runs = next((row["count"] for row in rows if isinstance(row.get("count"), int)), 0)
    at, made = 0, []
    for number, row in enumerate(rows):
        if "count" in row and "name" not in row:
            continue
        name, mean = row.get("name"), row.get("averageMs", row.get("medianMs"))
        if not isinstance(name, str) or isinstance(mean, bool) or not isinstance(mean, int | Decimal) or not mean >= 0:
            raise RecordError(f"holds layer {number} without a name or an average time", where=str(file))
        if mean > MAX_DURATION_NS // 10**6:
            raise RecordError(f"holds layer {number} with a time beyond all bounds", where=str(file))
        end = at + max(round(mean * 10**6), 1)
        made.append(Event(number, "operator", operator_of(name), at, end, 0, None, {}))
        if layer := _LAYER.search(name):
            made.append(Event(number, "user_annotation", f"perfgate.layer.{layer[1]}", at, end - 1, 0, None, {}))
        at = end
    made.append(Event(len(rows), "user_annotation", "perfgate.step.0", 0, max(at, 1), 0, None, {}))
    text = (
        f"each layer has its mean over {runs or 'an unknown number of'} runs, put one after the other: the file does "
        "not say when a layer ran, what overlapped, which kernels it launched, or how its time varied"
    )
    return Recording(made, "TensorRT layer profile", {NONE: "TensorRT"}, (Note(code="not-recorded", text=text),))


def operator_of(layer: str) -> str:
    """A layer of TensorRT's by its operators alone: paths in the model go; what Myelin fused keeps its whole name."""
    return layer if layer.startswith(_REGION) else _PATH.sub(r"\1", layer)


def _renamed(event: Event, category: str, name: str, pid: int | None = None) -> Event:
    return Event(event.number, category, name, event.start_ns, event.end_ns, event.thread, pid, {})


def _on_device(event: Event) -> Event:
    stream = event.whole("stream")
    detail = {"device": 0, "stream": NONE if stream is None else stream, "launched_ns": event.start_ns}
    return Event(event.number, "kernel", event.name, event.start_ns, event.end_ns, NONE, 0, detail)


_FORMATS: tuple[tuple[Callable[[list[dict[str, Any]]], bool], Callable[[dict[str, Any], Path], Recording]], ...] = (
    (is_ascend, read_ascend),
    (is_onnxruntime, read_onnxruntime),
    (is_tensorrt, read_tensorrt),
)
"""What recognises a format, and what reads it; what none recognises is PyTorch's."""


def read_events(file: Path) -> Recording:
    """The events of a JSON file in the terms of PyTorch's profiler, whichever tool wrote it.

    Raises:
        RecordError: It is too large, not JSON, cut short or no trace, or misses what its format must have.
    """
    content = load_events(file)
    reader = next((read for recognises, read in _FORMATS if recognises(content["traceEvents"])), read_kineto)
    try:
        return reader(content, file)
    except ValueError as error:
        raise RecordError(f"holds an event with a wrong number: {error}", where=str(file)) from error
