"""Exports of nsys: the H200 capture against plain SQL, real exports of three versions, and everything that is wrong."""

from __future__ import annotations

import contextlib
import functools
import gzip
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsys_builder import PID, VERSIONS, ExportBuilder, global_id

from perfgate.errors import RecordError
from perfgate.scenario.kernel_names import COPY_KINDS, PLACES, RoleRule
from perfgate.trace.breakdown import figures
from perfgate.trace.kernel_table import NONE, STEP_KINDS, Trace
from perfgate.trace.nsys import read_nsys
from perfgate.trace.scrub import scrub
from perfgate.trace.selection import by_kernel, patterns, select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.sqlite.gz"

PLAIN = """
SELECT s.value, COUNT(*), SUM(k.end - k.start), SUM(k.graphNodeId IS NOT NULL), MIN(k.start), MAX(k.end)
FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId
JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start BETWEEN n.start AND n.end AND r.globalTid = n.globalTid
JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId AND k.globalPid = (r.globalTid & ~0xFFFFFF)
WHERE n.eventType = 60 GROUP BY s.value
"""


@pytest.fixture(scope="module")
def capture() -> Trace:
    """The H200 capture: vLLM 0.25.1, Llama 8B, batch 8, full graphs in decode."""
    return read_trace(CAPTURE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """The same file for SQL."""
    file = tmp_path_factory.mktemp("capture") / "capture.sqlite"
    file.write_bytes(gzip.decompress(CAPTURE.read_bytes()))
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE INDEX launches ON CUPTI_ACTIVITY_KIND_RUNTIME (start)")
        connection.execute("CREATE INDEX kernels ON CUPTI_ACTIVITY_KIND_KERNEL (correlationId)")
        yield connection


def test_every_step_has_the_totals_of_plain_sql(capture: Trace, plain: sqlite3.Connection) -> None:
    """Launches, kernel time, launches from graphs and both ends of every step are those of one SQL query."""
    expected = {row[0]: row[1:] for row in plain.execute(PLAIN)}
    kernels = capture.kernels
    found = {}
    for step, index in enumerate(capture.steps.index.tolist()):
        rows = kernels.take(kernels.step == step)
        if len(rows):
            end = (rows.start_ns + rows.duration_ns).max()
            sums = (len(rows), rows.duration_ns.sum(), rows.graph.sum(), rows.start_ns.min(), end)
            found[f"perfgate.step.{index}"] = tuple(int(value) for value in sums)
    assert found == expected
    assert len(found) == 128


def test_what_the_capture_is_known_for(capture: Trace) -> None:
    """438 kernels a decode step, 439 and a third copy to the device in every 16th, 419 from the graph."""
    decode = select(capture)
    assert decode.what == "127 decode steps"
    assert patterns(decode) == [(438, 119), (439, 8)]
    found = decode.figures
    longer = np.flatnonzero(found.launches == 439)
    assert np.diff(longer).tolist() == [16] * 7
    assert (found.copies[:, COPY_KINDS.index("h2d")] == np.where(found.launches == 439, 3, 2)).all()
    assert set(found.graph_launches.tolist()) == {419}
    assert not found.copies[:, COPY_KINDS.index("h2d-pageable")].any()
    assert np.median(found.slack_ns[1:]) == pytest.approx(2.01e6, rel=0.01)  # launched 4.2 ms ahead, but waiting less
    assert np.percentile(found.work_ns, 10) == pytest.approx(2.747e6, rel=0.01)
    assert [STEP_KINDS[kind] for kind in capture.steps.kind[[0, 1, -1]]] == ["prefill", "decode", "idle"]
    assert [caution.code for caution in capture.cautions] == ["trace-damaged"]
    assert (capture.processes, capture.devices) == ((555,), {0: "NVIDIA H200"})


def test_figures_of_the_capture_against_plain_sql(capture: Trace, plain: sqlite3.Connection) -> None:
    """Bytes copied, the profiler's own work and the time in launching calls are those that SQL adds up."""
    found = figures(capture)
    (copied,) = plain.execute("SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY").fetchone()
    assert found.copy_bytes.sum() == copied
    launching = "SELECT SUM(end - start), COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN (652, 657, 719)"
    assert (found.call_ns.sum(), found.calls.sum()) == plain.execute(launching).fetchone()
    overhead = "SELECT SUM(end - start) FROM PROFILER_OVERHEAD WHERE start < 778000000"
    assert found.overhead_ns.sum() == plain.execute(overhead).fetchone()[0]


def test_the_four_gemms_of_a_layer(capture: Trace) -> None:
    """The place in the layer tells the four gemms apart, split-K sums included, and finds 32 of each in every step."""
    decode = select(capture)
    gemms = {(one.role, one.place): one.launches / decode.steps for one in by_kernel(decode) if one.place}
    assert gemms == {
        ("gemm", "qkv"): 32, ("gemm", "out"): 32, ("gemm", "gate-up"): 32, ("gemm", "down"): 32, ("gemm", "lm-head"): 1,
        ("gemm-reduce", "out"): 32, ("gemm-reduce", "down"): 32,
    }  # fmt: skip
    assert sum(one.launches for one in by_kernel(decode) if one.role == "gemm" and not one.place) == 0


def test_a_layer_is_an_address(capture: Trace) -> None:
    """Layer 5 of a step is its 13 kernels in order, from its norm to the sum of its last gemm; so are all 32."""
    layer = select(capture, 260, 5)
    rows = capture.kernels.take(layer.rows)
    roles = [capture.names.role[name] for name in rows.name]
    assert roles == [
        "norm", "gemm", "rope", "kv-write", "attention", "attention", "gemm", "gemm-reduce", "norm", "gemm",
        "activation", "gemm", "gemm-reduce",
    ]  # fmt: skip
    assert [PLACES[place] for place in rows.place if place] == ["qkv", "out", "out", "gate-up", "down", "down"]
    decode = capture.kernels.take(select(capture).rows)
    counts = np.bincount(decode.layer[decode.layer != NONE])
    assert counts.tolist() == [13 * 127] * 32


def test_the_scenarios_roles(capture: Trace) -> None:
    """The roles of the design's example give its numbers: attention 65, gemm 129."""
    own = [RoleRule("attention", "flash::|fmha"), RoleRule("gemm", "nvjet|gemm")]
    found = figures(read_trace(CAPTURE, own))
    decode = found.take(found.launches == 438)
    roles = capture.roles
    assert {role: set(decode.role_launches[:, roles.index(role)].tolist()) for role in ("attention", "gemm")} == {
        "attention": {65},
        "gemm": {129},
    }


def graphs_in_steps(builder: ExportBuilder, starts: list[tuple[int, int, int]]) -> None:
    """In each range (N, start, end) one kernel of its own and a graph of three."""
    for step, start, end in starts:
        builder.launch("gemm_before", start + 10, end + 1000, end + 3000)
        nodes = [("qkv_gemm", end + 4000, end + 5000), ("flash_attn", end + 5000, end + 7000 + step)]
        builder.graph(start + 2000, [*nodes, ("reshape_and_cache", end + 8000, end + 8500)])


@pytest.mark.parametrize("version", ["2022.4", "2023.4", "2024.2"])
def test_real_exports_of_three_versions(version: str, tmp_path: Path) -> None:
    """Ranges as each nsys recorded them, with CUDA rows put in between: its layout, strings and clock are real."""
    file = tmp_path / "export.sqlite"
    file.write_bytes(gzip.decompress((FIXTURES / f"nsys-{version}-nvtx.sqlite.gz").read_bytes()))
    query = (
        "SELECT substr(s.value, 15), start, end FROM NVTX_EVENTS JOIN StringIds s ON s.id = textId "
        "WHERE eventType = 60 ORDER BY start"
    )
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        steps = [(int(number), start, end) for number, start, end in connection.execute(query)]
        ((pid,),) = connection.execute("SELECT DISTINCT globalTid & ~0xFFFFFF FROM NVTX_EVENTS")
    connection.close()
    builder = ExportBuilder(version)
    graphs_in_steps(builder, steps)
    for rows in builder.rows.values():  # into the process that opened the ranges
        for row in rows:
            row |= {key: pid | (row[key] & 0xFFFFFF) for key in ("globalPid", "globalTid") if key in row}

    trace = read_nsys(builder.write(file))

    assert trace.source.startswith(f"nsys {version}.")
    assert [STEP_KINDS[kind] for kind in trace.steps.kind] == ["prefill", *["decode"] * 7]
    assert trace.steps.index.tolist() == list(range(3, 11))
    found = figures(trace)
    assert found.launches.tolist() == [4] * 8
    assert found.graph_launches.tolist() == [3] * 8
    assert found.kernel_ns.tolist() == [2000 + 1000 + 2000 + n + 500 for n in range(3, 11)]
    assert trace.cautions == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_layouts_and_row_orders_do_not_matter(version: str, tmp_path: Path) -> None:
    """Every layout, in any order of rows, gives the same table."""
    tables = []
    for seed in (None, 1, 2):
        builder = ExportBuilder(version)
        for n in range(4):
            builder.span(f"perfgate.step.{n}", n * 10_000, n * 10_000 + 9_000, registered=bool(n % 2))
        graphs_in_steps(builder, [(n, n * 10_000, n * 10_000 + 9_000) for n in range(4)])
        shuffle = random.Random(seed) if seed else None  # noqa: S311 (an order, no secret)
        tables.append(read_nsys(builder.write(tmp_path / f"{seed}.sqlite", shuffle)))
    first, *others = tables
    for other in others:
        for name in vars(first.kernels):
            assert (getattr(first.kernels, name) == getattr(other.kernels, name)).all(), name
        assert (first.names, first.cautions) == (other.names, other.cautions)
    assert first.kernels.graph.sum() == 12
    assert (first.kernels.step >= 0).all()


def test_vllms_own_ranges(tmp_path: Path) -> None:
    """With execute_context ranges alone, a step lasts to the next range, so that the sampler after it is inside."""
    builder = ExportBuilder()
    names = ["execute_context_4(64)_generation_0(0)", "execute_context_0(0)_generation_4(4)",
             "execute_7_context_1(sq3sk9sqsq9sqsk27)_generation_4(sq4sk80sqsq4sqsk80)",
             "execute_context_0(0)_generation_4(4)"]  # fmt: skip
    builder.launch("before_any_step", 50, 60, 70)
    for n, name in enumerate(names):
        builder.span(name, 1000 + 10_000 * n, 4000 + 10_000 * n)
        builder.launch("gemm", 1500 + 10_000 * n, 20_000 + 10_000 * n, 21_000 + 10_000 * n)
        builder.launch("sampler", 8000 + 10_000 * n, 22_000 + 10_000 * n, 23_000 + 10_000 * n)

    trace = read_nsys(builder.write(tmp_path / "vllm.sqlite"))

    assert [STEP_KINDS[kind] for kind in trace.steps.kind] == ["prefill", "decode", "mixed", "decode"]
    assert figures(trace).launches.tolist() == [2, 2, 2, 2]
    assert trace.steps.complete.tolist() == [True, True, True, False]
    assert select(trace).what == "1 decode step"
    assert (trace.kernels.step == NONE).sum() == 1


def test_layers_by_ranges_without_graphs(tmp_path: Path) -> None:
    """In eager mode a kernel belongs to the layer whose range was open at its launch, modules inside it included.

    A step of the same kernels without ranges has its layers from their sequence.
    """
    builder = ExportBuilder()
    for step in (10, 11):
        builder.span(f"perfgate.step.{step}", (step - 10) * 100_000, (step - 10) * 100_000 + 99_000)
        for n in range(3):
            begin = 10_000 + 20_000 * n + 100_000 * (step - 10)
            if step == 10:
                builder.span(f"perfgate.layer.{n + 4}", begin, begin + 18_000)
                builder.span(f"{{'Module': 'model.layers.{n + 4}.self_attn'}}", begin + 3000, begin + 6000)
            for offset, name in ((1000, "rms_norm"), (3500, "flash_attn"), (9000, "other"), (15_000, "gemm")):
                builder.launch(name, begin + offset, 200_000 + begin + offset, 200_500 + begin + offset)
        builder.launch(
            "sampler", 90_000 + 100_000 * (step - 10), *(n + 100_000 * (step - 10) for n in (290_000, 299_000))
        )

    trace = read_nsys(builder.write(tmp_path / "eager.sqlite"))

    assert trace.kernels.layer.tolist() == [
        *[4] * 4, *[5] * 4, *[6] * 4, NONE, *[0] * 4, *[1] * 4, *[2] * 4, NONE,
    ]  # fmt: skip
    assert [trace.names.short[n] for n in trace.kernels.take(select(trace, 10, 5).rows).name] == [
        "rms_norm", "flash_attn", "other", "gemm",
    ]  # fmt: skip


def test_processes_with_the_same_correlation_ids(tmp_path: Path) -> None:
    """Ids repeat in every process: a kernel goes to the step of its own."""
    builder = ExportBuilder()
    for rank, pid in enumerate((100, 200)):
        for n in range(2):
            builder.span(f"perfgate.step.{n}", n * 1000, n * 1000 + 900, pid=pid)
            builder.launch(f"kernel_of_{pid}", n * 1000 + 10, 5000 + n * 100, 5050 + n * 100, pid=pid, device=rank)

    trace = read_nsys(builder.write(tmp_path / "ranks.sqlite"))

    owner = trace.steps.process[trace.kernels.step]
    assert (owner == trace.kernels.process).all()
    assert trace.processes == (100, 200)
    assert [(row.name, row.launches) for row in by_kernel(select(trace, 1))] == [(0, 1), (1, 1)]


def test_a_launch_outside_the_trace(tmp_path: Path) -> None:
    """A kernel without its launching call is kept, belongs to no step, and the table says so."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 1000)
    builder.launch("known", 10, 2000, 2100)
    builder.kernel("lost", 3000, 3100, 77)
    builder.kernel("without_id", 3200, 3300, None)
    builder.call("cudaLaunchKernel", 20, 30)
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["correlationId"] = None

    trace = read_nsys(builder.write(tmp_path / "lost.sqlite"))

    assert trace.kernels.step.tolist() == [0, NONE, NONE]
    assert [caution.code for caution in trace.cautions] == ["trace-damaged"]
    assert "2 of 3 kernels" in trace.cautions[0].text


def test_an_unclosed_step(tmp_path: Path) -> None:
    """A step whose range the capture cut is left out, with a caution."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 1000)
    builder.span("perfgate.step.1", 1000, None)
    builder.launch("one", 10, 2000, 2100)
    builder.launch("two", 1010, 2200, 2300)

    trace = read_nsys(builder.write(tmp_path / "cut.sqlite"))

    assert trace.steps.index.tolist() == [0]
    assert trace.kernels.step.tolist() == [0, NONE]
    assert [caution.code for caution in trace.cautions] == ["trace-damaged"]


def one_kernel() -> ExportBuilder:
    """The least that reads."""
    builder = ExportBuilder()
    builder.launch("kernel", 0, 100, 200)
    return builder


def without_kernels() -> ExportBuilder:
    """A capture whose range opened too late."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 10)
    return builder


def graphs_as_events() -> ExportBuilder:
    """The default of nsys: a graph is one event."""
    builder = one_kernel()
    builder.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=0, end=9, deviceId=0, streamId=7, graphId=1, graphExecId=2)
    return builder


def lost_data() -> ExportBuilder:
    """Versions from 2024 on say so."""
    builder = one_kernel()
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=2, text="Some CUDA events were dropped.")
    return builder


def text_for_a_number() -> ExportBuilder:
    """Another program wrote into the file."""
    builder = one_kernel()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = "soon"
    return builder


def packed(column: str, value: object) -> Callable[[], ExportBuilder]:
    """A value that SQL would take for another one where several columns are read as one number."""

    def make() -> ExportBuilder:
        builder = one_kernel()
        builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0][column] = value
        return builder

    return make


def backwards() -> ExportBuilder:
    """An event of negative length."""
    builder = one_kernel()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["end"] = 50
    return builder


def no_such_string() -> ExportBuilder:
    """A name that StringIds does not have."""
    builder = one_kernel()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["demangledName"] = 5
    return builder


def no_process() -> ExportBuilder:
    """A kernel of no process."""
    builder = one_kernel()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["globalPid"] = None
    return builder


def twice() -> ExportBuilder:
    """Two runs in one capture."""
    builder = one_kernel()
    builder.span("perfgate.step.4", 0, 10)
    builder.span("perfgate.step.4", 20, 30)
    return builder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (without_kernels, r"holds no CUDA kernel \(nsys 2023\.4\.0\.0\)\n  Was --trace=cuda given"),
        (graphs_as_events, r"CUDA graphs as single events.*\n  Trace with --cuda-graph-trace=node"),
        (lost_data, "nsys lost data: Some CUDA events were dropped"),
        (text_for_a_number, "table CUPTI_ACTIVITY_KIND_KERNEL holds a value that is not an integer.*'soon'"),
        (packed("streamId", "seven"), "KERNEL has streamId 'seven', expected a whole number up to"),
        (packed("gridX", b"1"), "KERNEL has gridX"),
        (packed("deviceId", 1 << 16), "KERNEL has deviceId '65536', expected a whole number up to 65535"),
        (packed("demangledName", -7), "KERNEL has demangledName '-7'"),
        (backwards, "kernels that end before they start"),
        (no_such_string, "StringIds has no text 5"),
        (no_process, "table CUPTI_ACTIVITY_KIND_KERNEL holds a value that is not an integer"),
        (twice, r"a process has perfgate\.step\.4 twice"),
    ],
)
def test_exports_that_are_refused(make: Callable[[], ExportBuilder], words: str, tmp_path: Path) -> None:
    """What cannot be trusted is an error with the file's name, what is wrong and what to do; never an empty table."""
    file = make().write(tmp_path / "export.sqlite")
    with pytest.raises(RecordError, match=words) as caught:
        read_nsys(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_rows_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows a table has lost, and however many are read at a time, each is read once."""
    monkeypatch.setattr("perfgate.trace.nsys_export._CHUNK_ROWS", 3)
    builder = ExportBuilder()
    for at in range(20):
        builder.launch("gemm", at, 100 + at, 101 + at)
    file = builder.write(tmp_path / "export.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start IN (100, 104, 105, 106, 107, 119)")
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = -rowid WHERE start < 104")
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = 1 << 62 WHERE start = 118")
    connection.close()
    kernels = read_nsys(file).kernels
    assert kernels.start_ns.tolist() == [101, 102, 103, *range(108, 119)]
    assert kernels.launched_ns.tolist() == [1, 2, 3, *range(8, 19)]


@pytest.mark.parametrize("value", ["1,2", "7.5", 7.5, b"7", "", 1e30])
def test_values_that_are_joined_as_text(value: Any, tmp_path: Path) -> None:
    """What is not one integer is not taken for one, or for two."""
    builder = one_kernel()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["end"] = value
    with pytest.raises(RecordError, match=r"holds a value that is not an integer|that end before they start"):
        read_nsys(builder.write(tmp_path / "export.sqlite"))


def test_a_trace_that_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is read, with what it takes and what to do: the kernel would kill without a word."""
    monkeypatch.setattr("perfgate.trace.limits.available_bytes", lambda: 100)
    file = one_kernel().write(tmp_path / "export.sqlite")
    with pytest.raises(
        RecordError, match=r"needs about 0\.0 GiB of memory to read, and 0\.0 GiB is available"
    ) as caught:
        read_nsys(file)
    assert "machine with more memory" in str(caught.value.remedy)


def test_a_missing_column(tmp_path: Path) -> None:
    """A layout that lacks what is needed is named by table, column and version."""
    file = one_kernel().write(tmp_path / "export.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN streamId TO streamNumber")
    connection.close()
    with pytest.raises(RecordError, match=r"KERNEL has no column streamId \(nsys 2023\.4\.0\.0\)"):
        read_nsys(file)


def test_files_that_are_no_export(tmp_path: Path) -> None:
    """Empty, foreign, cut short, overwritten in the middle: each has its own words."""
    whole = gzip.decompress(CAPTURE.read_bytes())
    foreign = tmp_path / "foreign.sqlite"
    with contextlib.closing(sqlite3.connect(foreign)) as connection, connection:
        connection.execute("CREATE TABLE measurements (value INTEGER)")
    connection.close()
    rotten = bytearray(whole)
    for page in range(200, 1300):  # of 1386; the schema stays
        rotten[page * 4096 : page * 4096 + 200] = bytes(200)
    cases = {
        "empty": (b"", "is empty"),
        "cut": (whole[: len(whole) // 2], "is cut short: 2838528 of 5677056 bytes"),
        "header": (whole[:50], "not an SQLite database"),
        "rotten": (bytes(rotten), "cannot be read: database disk image is malformed"),
        "foreign": (foreign.read_bytes(), "no export of nsys"),
        "text": (b"hello", "not an SQLite database"),
    }
    for name, (content, words) in cases.items():
        file = tmp_path / f"{name}.bin"
        file.write_bytes(content)
        with pytest.raises(RecordError, match=words):
            read_nsys(file)


LOSSES = (
    "CUPTI dropped 5 records. Some CUPTI events might be missing.",
    "Not all NVTX events might have been collected.",
    "Number of incomplete CUPTI events dropped: 12. Incomplete events appear when GPU timestamp information ...",
    "Some CPU samples and CUDA events were lost.",
    "Some events (7) were lost.",
)
NO_LOSSES = (
    "Sampling events were lost in the interval 1 - 2 (3) ns. Thread states and CPU utilization might be incorrect.",
    "Not all OpenGL events might have been collected.",
    "FTrace: some events (9) were lost. Try to increase ftrace buffer size and start a new profiling session.",
    "Gpu=0 Restarted sampling (due to buffer overflow)",
    "Couldn't allocate CUPTI buffers 2 times.Some CUPTI events might be missing.",
)


@pytest.mark.parametrize("text", LOSSES)
def test_a_loss_of_what_the_table_needs(text: str, tmp_path: Path) -> None:
    """Lost CUDA or NVTX events make a trace useless, and so does a loss that does not say of what."""
    builder = one_kernel()
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=2, text=text)
    with pytest.raises(RecordError, match="nsys lost data"):
        read_nsys(builder.write(tmp_path / "export.sqlite"))


@pytest.mark.parametrize("text", NO_LOSSES)
def test_a_loss_of_other_events(text: str, tmp_path: Path) -> None:
    """Samples of the CPU or events of OpenGL may be lost: the kernels are there, and a caution has nsys's words."""
    builder = one_kernel()
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=2, text=text)
    builder.add("DIAGNOSTIC_EVENT", timestamp=2, source=1, severity=2, text="OpenGL driver vendor is not supported.")
    file = builder.write(tmp_path / "export.sqlite")
    assert [(one.code, one.text) for one in read_nsys(file).cautions][:-1] == [("trace-damaged", f"nsys: {text}")]
    scrub(file, tmp_path / "copy.sqlite")
    assert [one.code for one in read_nsys(tmp_path / "copy.sqlite").cautions] == ["trace-damaged", "steps-unclear"]


def test_calls_that_launch_nothing_are_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that asks for events between launches fills the table of calls: only what is kept counts as a row."""
    monkeypatch.setattr("perfgate.trace.nsys_export.MAX_ROWS", 3)
    builder = ExportBuilder()
    for n in range(2):
        builder.launch("kernel", n, 100 + n, 101 + n)
        for _ in range(5):
            builder.call("cudaEventQuery", n, n + 1)
    builder.kernel("by_a_call_of_its_own", 200, 201, builder.call("acmeRun", 7, 9))
    trace = read_nsys(builder.write(tmp_path / "export.sqlite"))
    assert trace.kernels.launched_ns.tolist() == [0, 1, 7]
    assert len(trace.calls) == 2


def test_a_gpu_without_a_number(tmp_path: Path) -> None:
    """A number that is text names no GPU."""
    builder = one_kernel()
    builder.add("TARGET_INFO_GPU", vmId=1, id=0, cuDevice="first", name="NVIDIA H200")
    assert read_nsys(builder.write(tmp_path / "export.sqlite")).devices == {}


class Acting(sqlite3.Connection):
    """A connection with a function that might do something."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.create_function("act", 1, abs, deterministic=True)


def test_a_schema_that_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions in a file's schema may not call functions that are not known to be harmless."""
    file = one_kernel().write(tmp_path / "export.sqlite")
    with contextlib.closing(sqlite3.connect(file, factory=Acting)) as connection, connection:
        connection.execute("ALTER TABLE StringIds ADD COLUMN acted INTEGER GENERATED ALWAYS AS (act(id)) VIRTUAL")
    connection.close()
    monkeypatch.setattr(
        "perfgate.trace.nsys_export.sqlite3.connect", functools.partial(sqlite3.connect, factory=Acting)
    )
    with pytest.raises(RecordError, match=r"unsafe use of act\(\)"):
        read_nsys(file)


def test_a_value_beyond_all_bounds(tmp_path: Path) -> None:
    """A text of 20 MB where a name should be is refused by SQLite's own limit."""
    builder = one_kernel()
    file = builder.write(tmp_path / "export.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE StringIds SET value = ? WHERE value = 'kernel'", ("x" * (20 << 20),))
    connection.close()
    with pytest.raises(RecordError, match="cannot be read: string or blob too big"):
        read_nsys(file)


def test_names_that_are_sql(tmp_path: Path) -> None:
    """Names of tables and columns come from the file: they are quoted."""
    file = one_kernel().write(tmp_path / "export.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute('CREATE TABLE "a"");DROP TABLE b;--" (x INTEGER)')
        connection.execute('ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN "y"", 1 AS ""z" INTEGER')
    connection.close()
    scrub(file, tmp_path / "copy.sqlite")
    assert len(read_nsys(tmp_path / "copy.sqlite").kernels) == 1


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file too large to be read as a whole is refused with what to do, before memory runs out."""
    monkeypatch.setattr("perfgate.trace.nsys_export.MAX_ROWS", 3)
    builder = ExportBuilder()
    for n in range(4):
        builder.launch("kernel", n, 100 + n, 101 + n)
    with pytest.raises(RecordError, match=r"has more than 3 rows\n  Trace fewer iterations"):
        read_nsys(builder.write(tmp_path / "huge.sqlite"))


def test_an_error_that_is_no_loss(tmp_path: Path) -> None:
    """What nsys calls an error without lost data is a caution."""
    builder = one_kernel()
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=3, text="Range capture ended late.")
    builder.add("DIAGNOSTIC_EVENT", timestamp=2, source=1, severity=1, text="Profiling has started.")
    cautions = read_nsys(builder.write(tmp_path / "export.sqlite")).cautions
    assert [(one.code, one.text) for one in cautions] == [
        ("trace-damaged", "nsys: Range capture ended late."),
        ("steps-unclear", "no range names a step, so the table is of the whole trace"),
    ]


def test_pageable_copies(tmp_path: Path) -> None:
    """A copy from pageable memory is a kind of its own, with its bytes."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 10_000)
    builder.launch("kernel", 0, 20_000, 21_000)
    for host, size in ((0, 64), (1, 128)):
        builder.copy(1, 100, 22_000 + size, 22_010 + size, size, host)
        builder.copy(2, 100, 23_000 + size, 23_010 + size, size, host)
    builder.copy(8, 100, 24_000, 24_010, 512)
    found = figures(read_nsys(builder.write(tmp_path / "copies.sqlite")))
    assert dict(zip(COPY_KINDS, found.copy_bytes[0].tolist(), strict=True)) == {
        "h2d": 128, "h2d-pageable": 64, "d2h": 128, "d2h-pageable": 64, "d2d": 512, "peer": 0, "other": 0,
    }  # fmt: skip


def test_other_processes_are_left_out(tmp_path: Path) -> None:
    """Ranges, calls, copies and memsets of a process without kernels are in nobody's step."""
    builder = one_kernel()
    builder.span("perfgate.step.0", 0, 1000)
    builder.span("perfgate.step.0", 0, 1000, pid=PID + 1)
    builder.call("cudaDeviceSynchronize", 10, 20, pid=PID + 1)
    name, thread = builder.string("CUPTI: Buffer flush"), global_id(PID + 1, 3)
    builder.add("PROFILER_OVERHEAD", start=5, end=9, globalTid=thread, nameId=name)
    for pid in (PID - 1, PID + 1):
        builder.copy(1, 30, 110, 120, 64, pid=pid)
        builder.add("CUPTI_ACTIVITY_KIND_MEMSET", start=130, end=140, deviceId=0, streamId=7, bytes=4,
                    globalPid=global_id(pid))  # fmt: skip
    trace = read_nsys(builder.write(tmp_path / "export.sqlite"))
    assert len(trace.steps) == 1
    assert len(trace.calls) == 1
    assert (len(trace.copies), len(trace.memsets)) == (0, 0)
    assert figures(trace).copies.sum() == 0
    assert len(trace.overhead) == 0
    assert trace.processes == (global_id(PID) >> 24 & 0xFFFFFF,)
