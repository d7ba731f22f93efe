"""Profiles by operator: ONNX Runtime's, and TensorRT's of an engine's layers.

ONNX Runtime writes Chrome events: ``Session`` events with a ``model_run`` for each run, ``Node`` events whose
``..._kernel_time`` is an operator as the host saw it, and with a GPU's own profiling ``Kernel`` events
(onnxruntime/core/common/profiler_common.h). ``trtexec --exportProfile`` writes a list: how many runs there were, then
each layer with its times over them in milliseconds. Neither says more; what is missing is a caution.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.chrome_events import Event, complete_events
from perfgate.trace.kernel_table import NONE
from perfgate.trace.limits import MAX_DURATION_NS
from perfgate.trace.torch_profiler import Recording

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
