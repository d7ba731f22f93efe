"""Scrubbed copies: the same kernel table, and nothing of the machine, the user or the environment."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from nsys_builder import ExportBuilder, global_id

from perfgate.errors import RecordError, UsageError
from perfgate.trace.kernel_table import Trace
from perfgate.trace.scrub import scrub
from perfgate.trace.trace_file import read_trace

CAPTURE = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"
SECRETS = {
    "environment": "token-3f1c-in-the-environment",
    "host": "gpu-node-17.example.org",
    "user": "marie.curie",
    "path": "/home/marie/models/private-llama",
    "uuid": "5d1c8f3a-9e4b-4d27-8f60-c0ffee123456",
    "bus": "0000:1b:00.0",
    "process": "python3 -m secret.product --customer acme",
    "output": "what the engine printed",
    "range": "request of customer acme",
    "diagnostic": "see /var/tmp/session/stdout.log",
}


def leaky(folder: Path) -> Path:
    """An export with secrets wherever nsys puts them, and in some places more."""
    builder = ExportBuilder("2024.2")
    tid = global_id(4242, 4242)
    builder.span("perfgate.step.3", 0, 9000, registered=True)
    builder.span("execute_context_0(0)_generation_4(4)", 100, 8000)
    builder.span("{'Module': 'model.layers.5.self_attn', 'Cache': '" + SECRETS["path"] + "'}", 200, 7000)
    builder.span(SECRETS["range"], 300, 6000)
    builder.span(f"perfgate.step.4 {SECRETS['user']}", 10_000, 11_000, registered=True)
    builder.launch("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)", 500, 20_000, 21_000)
    builder.launch(f"lambda in {SECRETS['path']}/kernel.cu", 600, 22_000, 23_000)
    builder.copy(1, 700, 24_000, 24_100, 64)
    builder.add("PROFILER_OVERHEAD", start=50, end=60, globalTid=tid, nameId=builder.string("CUPTI: Buffer flush"))
    builder.add("DIAGNOSTIC_EVENT", timestamp=SECRETS["user"], source=1, severity=3, text=SECRETS["diagnostic"])
    builder.add("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200", busLocation=SECRETS["bus"], uuid=SECRETS["uuid"])
    for secret in SECRETS.values():
        builder.string(secret)
    file = builder.write(folder / "leaky.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        for table, kind in (("META_DATA_CAPTURE", "environment"), ("TARGET_INFO_SYSTEM_ENV", "host")):
            connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            connection.execute(f"INSERT INTO {table} VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', '{SECRETS[kind]}')")  # noqa: S608
        connection.execute("CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        connection.execute(f"INSERT INTO PROCESSES VALUES (1, 1, '{SECRETS['process']}')")  # noqa: S608
        connection.execute("CREATE TABLE ProcessStreams (filenameId INTEGER, content TEXT)")
        connection.execute(f"INSERT INTO ProcessStreams VALUES (1, '{SECRETS['output']}')")  # noqa: S608
        connection.execute(f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_USER', '{SECRETS['user']}')")  # noqa: S608
        # A column of numbers can hold text all the same.
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = ?", (SECRETS["host"],))
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN note TEXT")
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET note = ?", (SECRETS["path"],))
    connection.close()
    return file


def same_table(one: Trace, other: Trace) -> bool:
    """Whether two traces have the same kernels, steps, copies and calls."""
    return all(
        bool((getattr(getattr(one, part), name) == getattr(getattr(other, part), name)).all())
        for part in ("kernels", "steps", "copies", "memsets", "calls", "overhead")
        for name in vars(getattr(one, part))
    )


def test_no_secret_survives_in_an_export(tmp_path: Path) -> None:
    """No environment value, host, user, path, process, output, GPU identity is left, in whatever table it was."""
    source, target = leaky(tmp_path), tmp_path / "shown.sqlite"
    before = source.read_bytes()
    assert all(secret.encode() in before for secret in SECRETS.values())

    scrub(source, target)

    after = target.read_bytes()
    parts = [word for secret in SECRETS.values() for word in (secret, *secret.split("/")) if len(word) > 3]
    assert not [word for word in parts if word.encode() in after]
    assert source.read_bytes() == before
    copy, original = read_trace(target), read_trace(source)
    assert same_table(copy, original)
    assert copy.kernels.layer.tolist() == [5, 5]
    assert copy.steps.index.tolist() == [3]
    assert copy.devices == {0: "NVIDIA H200"}
    assert copy.names.demangled[copy.kernels.name[0]] == original.names.demangled[original.kernels.name[0]]
    assert [caution.code for caution in copy.cautions] == [caution.code for caution in original.cautions]


def test_lost_data_stays_an_error(tmp_path: Path) -> None:
    """Scrubbing does not make a capture good: what nsys lost is lost in the copy too."""
    builder = ExportBuilder()
    builder.launch("kernel", 0, 10, 20)
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=2, text=f"dropped events, {SECRETS['diagnostic']}")
    scrub(builder.write(tmp_path / "lost.sqlite"), tmp_path / "copy.sqlite")
    with pytest.raises(RecordError, match=r"lost data: lost data \(text scrubbed\)"):
        read_trace(tmp_path / "copy.sqlite")


def test_the_capture_scrubbed_again(tmp_path: Path) -> None:
    """A real capture gives the same table after scrubbing, packed or not."""
    scrub(CAPTURE, tmp_path / "copy.sqlite.gz")
    assert (tmp_path / "copy.sqlite.gz").read_bytes()[:2] == b"\x1f\x8b"
    copy, original = read_trace(tmp_path / "copy.sqlite.gz"), read_trace(CAPTURE)
    assert same_table(copy, original)
    assert copy.names == original.names
    scrub(CAPTURE, tmp_path / "again.sqlite.gz")
    assert (tmp_path / "again.sqlite.gz").read_bytes() == (tmp_path / "copy.sqlite.gz").read_bytes()


def test_no_secret_survives_in_a_torch_trace(tmp_path: Path) -> None:
    """Of a Chrome trace only events stay, with names and the arguments that are read; times begin at 0."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "perfgate.step.0", "pid": 1, "tid": 1, "ts": 1790857026000000.125,
         "dur": 50.5, "args": {"External id": 1, "stack": SECRETS["path"]}},
        {"ph": "X", "cat": "user_annotation", "name": SECRETS["range"], "pid": 1, "tid": 1, "ts": 1790857026000001,
         "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1790857026000002.001, "dur": 7.25,
         "args": {"Call stack": SECRETS["user"], "Input": SECRETS["process"], "External id": SECRETS["uuid"]}},
        {"ph": "X", "cat": "python_function", "name": f"{SECRETS['path']}/run.py(3): go", "pid": 1, "tid": 1,
         "ts": 1790857026000003, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": SECRETS["host"], "ts": 1790857026000004,
         "dur": 1, "args": {"grid": [SECRETS["bus"]]}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": SECRETS["process"]}},
    ]  # fmt: skip
    text = json.dumps({"traceEvents": events, "host_name": SECRETS["host"], "traceName": SECRETS["path"],
                       "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "uuid": SECRETS["uuid"]}]})  # fmt: skip
    source = tmp_path / "trace.json.gz"
    source.write_bytes(gzip.compress(text.encode()))

    scrub(source, tmp_path / "copy.json")

    after = (tmp_path / "copy.json").read_text()
    assert not [secret for secret in SECRETS.values() if secret in after]
    copy, original = read_trace(tmp_path / "copy.json"), read_trace(source)
    assert copy.kernels.duration_ns.tolist() == original.kernels.duration_ns.tolist() == [7250, 1000]
    assert copy.steps.index.tolist() == [0]
    assert copy.steps.start_ns.tolist() == [0]


def test_refusals(tmp_path: Path) -> None:
    """The original is never replaced, and what is no trace is not copied."""
    source = leaky(tmp_path)
    with pytest.raises(UsageError, match="would replace the original"):
        scrub(source, source)
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE secrets (value TEXT)")
    connection.close()
    with pytest.raises(RecordError, match="no export of nsys"):
        scrub(other, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()
