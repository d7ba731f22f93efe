"""Traces of PyTorch's profiler as ranks: what their clocks count from, and files that are none of a rank's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from nsys_builder import ExportBuilder
from rank_traces import NUMBERED, add_rank

from perfgate.cli.main import main
from perfgate.errors import NotMeasuredError
from perfgate.trace.rank_steps import summarise_ranks
from perfgate.trace.trace_file import read_ranks, read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(main, ["kernels", *words])


def kineto_rank(folder: Path, rank: int, first_us: float, **head: Any) -> str:
    """A trace of PyTorch's profiler: eight steps of 3 ms, in the fourth of which rank 0 computes for 1.2 ms longer.

    Args:
        folder: Where it is written.
        rank: Its device and process.
        first_us: When it begins by its own clock.
        head: What stands beside its events.
    """
    events: list[dict[str, Any]] = []
    for step in range(8):
        at, compute = first_us + 3000 * step, 1700.0 if step == 3 and rank == 0 else 500.0
        end = at + 100 + (1700 if step == 3 else 500) + 20
        host, where = {"ph": "X", "pid": 100 + rank, "tid": 1}, {"device": rank, "stream": 7}
        for number, (name, begin, length) in enumerate(
            [
                ("nvjet_gemm", at + 100, compute),
                ("ncclDevKernel_AllReduce_Sum", at + 100 + compute, end - at - 100 - compute),
            ]
        ):
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10 * number, "dur": 5}
            work = {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": length, "pid": rank, "tid": 7}
            numbered = {"correlation": 10 * step + number}
            events += [{**host, **call, "args": numbered}, {**work, "args": {**where, **numbered}}]
        name = "execute_context_0(0)_generation_8(8)"
        events.append({**host, "cat": "user_annotation", "name": name, "ts": at, "dur": 100})
    file = folder / f"rank{rank}-{len([*folder.iterdir()])}.json"
    file.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events}))
    return str(file)


BASE_NS = 1_790_740_920_000_000_000


@pytest.mark.parametrize("form", [int, str])
def test_what_times_count_from_is_part_of_them(tmp_path: Path, form: Callable[[int], Any]) -> None:
    """Ranks whose windows begin 6 ms apart, each with times from its own begin: who waits is told as on one clock."""
    one_clock = [kineto_rank(tmp_path, 0, 1000), kineto_rank(tmp_path, 1, 1000)]
    counted = [
        kineto_rank(tmp_path, rank, first_us, baseTimeNanoseconds=form(BASE_NS - int(1000 * first_us)))
        for rank, first_us in ((0, 0.0), (1, 6000.0))
    ]
    found = [json.loads(run(*files, "--format", "json").stdout) for files in (one_clock, counted)]
    for each in found:
        assert [rank["waiting_ns"] for rank in each["ranks"]] == pytest.approx([0, 1_200_000 / 7])
        assert each["steps"] == 7
    late = kineto_rank(tmp_path, 1, 0.0, baseTimeNanoseconds=BASE_NS + 6_000_000)
    shifted = json.loads(run(counted[0], late, "--format", "json").stdout)
    assert shifted["steps"] == 5
    assert [rank["waiting_ns"] for rank in shifted["ranks"]] == pytest.approx([0, 1_200_000 / 5])


def test_a_trace_that_does_not_say_what_it_counts_from_has_no_clock_in_common(tmp_path: Path) -> None:
    """Beside one that says it: nothing tells which steps belong together, so no waiting is told."""
    files = [kineto_rank(tmp_path, 0, 0, baseTimeNanoseconds=BASE_NS), kineto_rank(tmp_path, 1, 0)]
    found = json.loads(run(*files, "--format", "json").stdout)
    assert [(rank["waiting_ns"], rank["last"]) for rank in found["ranks"]] == [(None, None)] * 2
    assert [caution["code"] for caution in found["cautions"]] == ["trace-damaged"]
    assert found["cautions"][0]["text"].startswith("rank1-1.json: no baseTimeNanoseconds, which the others count")
    with pytest.raises(NotMeasuredError, match="baseTimeNanoseconds") as caught:
        summarise_ranks([read_trace(Path(file)) for file in files], 2)
    assert caught.value.code == "trace-damaged"


def test_windows_that_do_not_overlap_share_no_step(tmp_path: Path) -> None:
    """On a clock that both name: the order of steps is no reason to hold them against each other."""
    files = [kineto_rank(tmp_path, rank, 0, baseTimeNanoseconds=BASE_NS + rank * 60_000_000_000) for rank in range(2)]
    found = json.loads(run(*files, "--format", "json").stdout)
    assert [(rank["waiting_ns"], rank["last"]) for rank in found["ranks"]] == [(None, None)] * 2
    assert found["collectives"] == 0
    assert any("no other rank leaves collectives with it" in caution["text"] for caution in found["cautions"])


@pytest.mark.parametrize("name", [NUMBERED, "execute_context_0(0)_generation_8(8)"])
def test_stages_of_one_file_that_share_no_collective(tmp_path: Path, name: str) -> None:
    """One file has one clock, whatever numbers its steps have; the second stage begins when the first has ended."""
    builder = ExportBuilder()
    work = [("nvjet", 1000, 20_000), ("ncclDevKernel_AllReduce_Sum", 21_000, 2000)]
    add_rank(builder, 0, dict.fromkeys(range(6), work), name=name)
    later = [(kernel, at + 23_000, ns) for kernel, at, ns in work]
    add_rank(builder, 1, dict.fromkeys(range(6), later), name=name)
    file = str(builder.write(tmp_path / "export.sqlite"))
    found = json.loads(run(file, "--show", "ranks", "--format", "json").stdout)
    assert [(rank["waiting_ns"], rank["last"]) for rank in found["ranks"]] == [(None, None)] * 2
    (caution,) = found["cautions"]
    assert "process 101 device 1: no other rank leaves collectives with it" in caution["text"]


@pytest.mark.parametrize(
    "base",
    [1.5, True, "soon", [1], 1 << 63, "9" * 400, -1, str(-BASE_NS), -BASE_NS, 1, BASE_NS // 1000, BASE_NS * 1000],
)
def test_what_times_cannot_count_from(tmp_path: Path, base: Any) -> None:
    """It is refused with the key and the value; nothing that is read depends on a guess."""
    ended = run(kineto_rank(tmp_path, 0, 0, baseTimeNanoseconds=base))
    assert ended.exit_code == 2
    assert "counts its times from baseTimeNanoseconds" in ended.output
    assert len(ended.output) < 400


def test_times_beyond_what_they_count_from_are_refused(tmp_path: Path) -> None:
    """An event before 1970 or after 2116 is named with both numbers; without the key times are of any clock."""
    for first_us in (-BASE_NS / 1000 - 10, (1 << 62) // 1000 - BASE_NS / 1000 + 10):
        ended = run(kineto_rank(tmp_path, 0, first_us, baseTimeNanoseconds=BASE_NS))
        assert ended.exit_code == 2
        assert re.search(rf"event \d+: ts -?\d+[.\d]* from baseTimeNanoseconds {BASE_NS} on", ended.output)
        assert run(kineto_rank(tmp_path, 0, first_us)).exit_code == 0
    assert run(kineto_rank(tmp_path, 0, 0, baseTimeNanoseconds=0)).exit_code == 0


@pytest.mark.parametrize("beside", [
    [{"ph": "X", "cat": "cpu_op", "name": "aten::empty", "ts": 9, "dur": 1, "pid": 5, "tid": 5}],
    [{"ph": "X", "cat": "user_annotation", "name": "schedule", "ts": 9, "dur": 1, "pid": 5, "tid": 5}],
    [],
])  # fmt: skip
def test_a_trace_of_no_rank_is_set_aside(tmp_path: Path, beside: list[dict[str, Any]]) -> None:
    """The front end of a server leaves one without work of a device: the ranks are compared as without it."""
    ranks = [kineto_rank(tmp_path, rank, 1000) for rank in range(2)]
    front = tmp_path / "host_1.async_llm.1.pt.trace.json"
    front.write_text(json.dumps({"traceEvents": beside}))
    alone = json.loads(run(*ranks, "--format", "json").stdout)
    for files in ([*ranks, str(front)], [str(front), *ranks]):
        found = json.loads(run(*files, "--format", "json").stdout)
        assert {key: value for key, value in found.items() if key != "cautions"} == {
            key: value for key, value in alone.items() if key != "cautions"
        }
        (caution,) = found["cautions"]
        assert caution["text"] == f"set aside, because the others alone show what ranks run: {front.name}"
    assert "the trace is of one rank" in run(ranks[0], str(front)).stdout
    read = read_ranks([front, *map(Path, ranks)])
    steps, each = summarise_ranks([trace for _, trace in read], 2)
    assert [file.name for file, _ in read] == [Path(file).name for file in ranks]
    assert (len(each), each[1].waiting_ns) == (2, (0, 0, 0, 1_200_000, 0, 0, 0))
    assert ("not-recorded", caution["text"]) in steps.cautions


def test_files_of_which_none_is_a_ranks(tmp_path: Path) -> None:
    """The first is refused as if it were alone."""
    file = tmp_path / "front.json"
    file.write_text('{"traceEvents": []}')
    ended = run(str(file), str(file))
    assert (ended.exit_code, "front.json: holds no kernel" in ended.output) == (2, True)


def test_ranks_on_the_cpu_are_those_with_steps(tmp_path: Path) -> None:
    """No device tells them from a front end there."""
    fixtures = [str(FIXTURES / f"cpu-tiny-tp2-rank{rank}.torch-2.13.json.gz") for rank in range(2)]
    front = tmp_path / "front.json"
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "ts": 9, "dur": 1, "pid": 5, "tid": 5}
    front.write_text(json.dumps({"traceEvents": [operator]}))
    shown = run(*fixtures, str(front), "--format", "text").stdout
    assert shown.startswith("2 ranks: 6 steps and 60 collectives compared.")
    assert "set aside, because the others alone show what ranks run: front.json" in shown
