"""Traces of other tools, built after their published formats: Ascend's profiler, ONNX Runtime, TensorRT's layers."""

from __future__ import annotations

from typing import Any

HOST, CANN, CHIP, GROUPS, OVERLAP = 4242, 4343, 800, 900, 1000


def span(pid: int, tid: int, name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    """A complete event; CANN writes the times as text."""
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": f"{start:.3f}", "dur": duration, **more}


def called(what: str, pid: int, name: str, tid: int = 0) -> dict[str, Any]:
    """Metadata: the name of a process or thread."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def task(name: str, kind: str, start: float, duration: float, connection: int, stream: int = 2) -> dict[str, Any]:
    """A task of the hardware."""
    detail = {"Model Id": 4294967295, "Task Type": kind, "Stream Id": stream, "Task Id": 7, "connection_id": connection}
    return span(CHIP, stream, name, start, duration, args=detail)


def launch(connection: int, at: float) -> dict[str, Any]:
    """A call that launches a task."""
    detail = {"Thread Id": HOST, "Mode": "launch", "level": "node", "connection_id": connection}
    return span(CANN, HOST, "Node@launch", at, 2, args=detail)


def flow(number: int, launched: float, stream: int, started: float) -> list[dict[str, Any]]:
    """The arrow from a launch to the task that it started."""
    ends = (("s", CANN, HOST, launched), ("f", CHIP, stream, started))
    return [
        {"ph": ph, "bp": "e", "cat": "HostToDevice", "name": f"HostToDevice{number}", "id": str(number), "pid": pid,
         "tid": tid, "ts": f"{at:.3f}"}
        for ph, pid, tid, at in ends
    ]  # fmt: skip


def ascend() -> list[dict[str, Any]]:
    """Two steps of a product, a collective that overlaps it by half, a gap, and an addition; all in microseconds."""
    events = [
        called("process_name", HOST, "Python"), called("process_name", CANN, "CANN"),
        called("process_name", CHIP, "Ascend Hardware"), called("process_name", GROUPS, "Communication"),
        called("process_name", OVERLAP, "Overlap Analysis"), called("thread_name", CHIP, "Stream 2", 2),
        called("thread_name", GROUPS, "Group 0 Communication", 1), called("thread_name", GROUPS, "Plane 0", 2),
        {"ph": "M", "pid": CHIP, "tid": 0, "name": "process_labels", "args": {"labels": "NPU 3"}},
    ]  # fmt: skip
    for n in range(2):
        at, first = 1000 * n, 10 * n
        events += [
            span(HOST, HOST, f"perfgate.step.{n}", at, 40, cat="cpu_op", args={}),
            span(HOST, HOST, "aten::mm", at + 1, 10, cat="cpu_op", args={}),
            launch(first + 1, at + 5), launch(first + 2, at + 10), launch(first + 3, at + 15),
            span(CANN, HOST, "AscendCL@aclrtSynchronizeStream", at + 20, 15, args={"connection_id": first + 9}),
            *flow(first + 1, at + 5, 2, at + 100),
            task(f"aclnnMatmul_MatMulV3Common_MatMulV3_{n}", "AI_CORE", at + 100, 100, first + 1),
            task("EVENT_WAIT", "EVENT_WAIT", at + 200, 100, -1),
            task("MEMCPY_ASYNC", "MEMCPY_ASYNC", at + 310, 5, first + 3),
            task(f"Add{n + 12}", "AI_VECTOR_CORE", at + 320, 30, first + 3),
            span(GROUPS, 1, f"hcom_allReduce__428_{n}_1", at + 150, 100, args={"connection_id": first + 2}),
            span(GROUPS, 2, "Memcpy", at + 150, 40, args={}),
            span(OVERLAP, 0, "Computing", at + 100, 100), span(OVERLAP, 0, "Computing", at + 320, 30),
            span(OVERLAP, 1, "Communication", at + 150, 100),
            span(OVERLAP, 2, "Communication(Not Overlapped)", at + 200, 50),
            span(OVERLAP, 3, "Free", at + 250, 70),
        ]  # fmt: skip
    return events


def node(name: str, operator: str, start: int, duration: int, provider: str = "CPU") -> dict[str, Any]:
    """An operator of ONNX Runtime's, as its profile writes it."""
    detail = {"op_name": operator, "provider": f"{provider}ExecutionProvider", "node_index": "3"}
    return {"cat": "Node", "pid": 77, "tid": 78, "dur": duration, "ts": start, "ph": "X",
            "name": f"{name}_kernel_time", "args": detail}  # fmt: skip


def onnxruntime() -> list[dict[str, Any]]:
    """Two runs of four operators."""
    session = {"cat": "Session", "pid": 77, "tid": 78, "ph": "X", "args": {}}
    events = [{**session, "name": "session_initialization", "ts": 5, "dur": 900}]
    for at in (1000, 2000):
        events += [
            {**session, "name": "model_run", "ts": at, "dur": 700},
            {**session, "name": "SequentialExecutor::Execute", "ts": at + 1, "dur": 690},
            node("/model/layers.0/attn/qkv_proj/MatMul", "MatMulNBits", at + 10, 300),
            {**node("/model/layers.0/attn/qkv_proj/MatMul", "MatMulNBits", at + 9, 1), "name": "x_fence_before"},
            node("/model/layers.0/attn/GroupQueryAttention", "GroupQueryAttention", at + 320, 200),
            node("/model/layers.0/norm", "SkipSimplifiedLayerNormalization", at + 530, 50),
            node("/model/sin", "Sin", at + 590, 5),
        ]
    return events


def onnxruntime_kernels() -> list[dict[str, Any]]:
    """The same with a kernel of a GPU in each run."""
    detail = {"stream": "7", "grid_x": "1", "op_name": "MatMul", "parent_name": "/model/MatMul"}
    kernel = {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 90, "ph": "X", "name": "nvjet_tst_64x8", "args": detail}
    return [*onnxruntime(), {**kernel, "ts": 1020}, {**kernel, "ts": 2020}]


def tensorrt() -> list[dict[str, Any]]:
    """Four layers of an engine, over a hundred runs."""
    layers = {
        "/model/layers.0/self_attn/q_proj/MatMul + /model/layers.0/self_attn/k_proj/MatMul": 0.04,
        "PWN(/model/layers.0/mlp/act_fn/Sigmoid, /model/layers.0/mlp/Mul_1)": 0.004,
        "{ForeignNode[/model/layers.1/input_layernorm/Cast.../lm_head/MatMul]}": 0.2,
        "Reformatting CopyNode for Output Tensor 0 to /model/lm_head/MatMul": 0.001,
    }
    rows = [
        {"name": name, "timeMs": 100 * mean, "averageMs": mean, "medianMs": mean, "percentage": 25}
        for name, mean in layers.items()
    ]
    return [{"count": 100}, *rows]
