"""``perfgate kernels --show``: tables that answer one question each, as text, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from nsys_builder import ExportBuilder
from rank_traces import Work, add_rank, reduced

from perfgate.cli.main import main
from perfgate.kernels.commands import ANSWERS
from perfgate.kernels.trace_answers import launches_answer, path_answer, spread_answer
from perfgate.report.formats import render
from perfgate.trace.selection import Selection, select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.sqlite.gz"
ON_CPU = FIXTURES / "cpu-tiny.torch-2.13.json.gz"


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(main, ["kernels", *words])


@pytest.fixture(scope="module")
def capture() -> Selection:
    """The decode steps of the H200 capture."""
    return select(read_trace(CAPTURE))


def test_the_spread_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """Each kernel's launches: least, median, most, mean and standard deviation."""
    golden("kernels-spread.txt", render("answer", "text", spread_answer(capture)))


def test_the_launches_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """A host that is milliseconds ahead: long delays, long queues, two copies late."""
    golden("kernels-launches.txt", render("answer", "text", launches_answer(capture)))


def test_the_path_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """Bound by the device: kernels and the gaps between them."""
    golden("kernels-path.txt", render("answer", "text", path_answer(capture)))


def test_the_path_of_a_step_as_markdown(golden: Callable[[str, str], None]) -> None:
    """A step that the host holds up, with its chain."""
    builder = ExportBuilder()
    builder.span("perfgate.step.7", 0, 19_000)
    builder.launch("rms_norm", 0, 10_000, 13_000)
    builder.call("cudaStreamSynchronize", 2000, 14_000)
    builder.span("perfgate.step.8", 19_500, 40_000)
    builder.launch("rms_norm", 20_000, 25_000, 26_000)
    trace = builder.read()
    golden("kernels-path-step.md", render("answer", "markdown", path_answer(select(trace, 7))))


@pytest.mark.parametrize("show", ANSWERS)
def test_programs_are_told_everything(show: str) -> None:
    """JSON names each column with its unit, CSV holds the first table with the same columns."""
    words = (str(CAPTURE), "--show", show, "--step", "300")
    content = json.loads(run(*words, "--format", "json").stdout)
    assert content["selection"] == "step 300 (decode)"
    assert [caution["code"] for caution in content["cautions"]] == ["trace-damaged"]
    table = content[{"spread": "kernels", "launches": "launches", "path": "parts"}[show]]
    lines = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").stdout)))
    assert len(lines) == len(table) > 0
    assert {*lines[0]} == {*table[0]}
    assert any(key.endswith("_ns") for key in table[0])


def test_the_parts_of_a_path_add_up() -> None:
    """To the step, as its figures have it."""
    content = json.loads(run(str(CAPTURE), "--show", "path", "--step", "300", "--format", "json").stdout)
    (path,) = content["paths"]
    assert sum(part["on_path_ns"] for part in content["parts"]) == path["path_ns"]
    assert sum(piece["time_ns"] for piece in content["chain"]) == path["path_ns"]
    assert path["device_ns"] + path["gap_ns"] + path["host_ns"] == path["path_ns"]
    assert (path["step"], path["bound_by"]) == (300, "device")


@pytest.mark.parametrize("show", ["launches", "path"])
def test_what_a_trace_does_not_record_is_said(show: str) -> None:
    """Operators on the CPU are launched by no call."""
    ended = run(str(ON_CPU), "--show", show)
    assert ended.exit_code == 0
    assert "not-recorded" in ended.stdout
    assert "the trace holds no call of the host that launched what is shown" in ended.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "path", "--layer", "3"], "--show path is of whole steps: give --layer without it"),
        (
            ["--show", "path", "--counters", str(CAPTURE)],
            "--counters prints a table, --show path another one: give one of them",
        ),
        (["--show", "paths"], "Invalid value for '--show'"),
        (["--whole", "--step", "300"], "--whole takes the trace for one step, --step chooses one: give one of them"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], message: str) -> None:
    """They are refused with what to give instead."""
    ended = run(str(CAPTURE), *words)
    assert ended.exit_code == 2
    assert message in ended.output


def two_builds(folder: Path) -> list[str]:
    """Traces of a base and of a head whose norm takes longer, has a fused quantisation, and runs another gemm."""
    files = []
    for name, kernels in (
        ("base", [("rms_norm", 3000), ("scaled_fp8_quant", 2000), ("nvjet_one", 40_000)]),
        ("head", [("rms_norm_quant", 4000), ("nvjet_two", 43_000)]),
    ):
        builder = ExportBuilder()
        for step in range(3):
            at = 100_000 * step
            builder.span(f"perfgate.step.{step}", at, at + 99_000)
            builder.span("execute_context_0(0)_generation_8(8)", at, at + 90_000)
            for kernel, length in kernels:
                builder.launch(kernel, at, at + 10_000, at + 10_000 + length)
                at += 1000 + length
        files.append(str(builder.write(folder / f"{name}.sqlite")))
    return files


def test_two_traces_beside_each_other(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """The parts of the difference, the kernels, and what changed in them; the head is longer by what its parts are."""
    base, head = two_builds(tmp_path)
    golden("kernels-diff.md", run(base, "--diff", head, "--format", "markdown").stdout)
    content = json.loads(run(base, "--diff", head, "--format", "json").stdout)
    *parts, step = content["parts"]
    assert sum(part["difference_ns"] for part in parts) == pytest.approx(step["difference_ns"], abs=1e-6)
    assert {kernel["role"] for kernel in content["kernels"]} == {"norm", "quantize", "gemm"}
    lines = list(csv.DictReader(io.StringIO(run(base, "--diff", head, "--format", "csv").stdout)))
    assert [line["part"] for line in lines] == [part["part"] for part in content["parts"]]


def test_a_trace_beside_itself_differs_in_nothing() -> None:
    """Every part and every kernel."""
    content = json.loads(run(str(CAPTURE), "--diff", str(CAPTURE), "--format", "json").stdout)
    assert not content["changes"]
    assert not any(row["difference_ns"] for row in [*content["parts"], *content["kernels"]])


def test_a_single_step_without_a_successor_is_compared_by_its_kernels(tmp_path: Path) -> None:
    """The length of the step is not known, which is said."""
    base, head = two_builds(tmp_path)
    content = json.loads(run(base, "--diff", head, "--step", "2", "--format", "json").stdout)
    assert not content["parts"]
    assert len(content["kernels"]) == 5
    assert [caution["code"] for caution in content["cautions"]][-1] == "not-recorded"


def test_traces_without_steps_cannot_be_compared(tmp_path: Path) -> None:
    """Sums over other stretches of time say nothing."""
    builder = ExportBuilder()
    builder.launch("rms_norm", 0, 10, 30)
    file = str(builder.write(tmp_path / "export.sqlite"))
    ended = run(str(CAPTURE), "--diff", file)
    assert ended.exit_code == 2
    assert "export.sqlite shows no step that ran a kernel, and --diff compares steps" in ended.output


def two_ranks(folder: Path) -> list[str]:
    """Traces of two ranks, of which the second arrives last in every collective."""
    files = []
    for name, (compute, together) in {"rank-0": (20_000, 9000), "rank-1": (25_000, 4000)}.items():
        builder = ExportBuilder()
        for step in range(3):
            at = 100_000 * step
            builder.span(f"perfgate.step.{step}", at, at + 99_000)
            builder.launch("nvjet", at, at + 10_000, at + 10_000 + compute)
            builder.launch(
                "ncclDevKernel_AllReduce_Sum", at + 1000, at + 11_000 + compute, at + 11_000 + compute + together
            )
        files.append(str(builder.write(folder / f"{name}.sqlite")))
    return files


def test_ranks_beside_each_other(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """Several files are ranks: the first waits in each collective for the second."""
    files = two_ranks(tmp_path)
    golden("kernels-ranks.md", run(*files, "--format", "markdown").stdout)
    content = json.loads(run(*files, "--show", "ranks", "--format", "json").stdout)
    assert [rank["waiting_ns"] for rank in content["ranks"]] == [5000, 0]
    assert (content["steps"], content["collectives"], content["cautions"]) == (3, 3, [])


def test_one_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    """Said with what is missing, as where no collective is recorded, or none that both ran."""
    files = two_ranks(tmp_path)
    assert "the trace is of one rank: give a trace of each" in run(files[0], "--show", "ranks").stdout
    assert "no kernel is a collective in which all ranks wait" in run(*two_builds(tmp_path)).stdout
    assert "no step ran the same collectives on every rank" in run(files[0], str(CAPTURE)).stdout


def traced_ranks(folder: Path, ranks: Sequence[Mapping[int, Sequence[Work]]], name: str) -> list[str]:
    """A file for each rank with these steps, all on one clock."""
    files = []
    for number, steps in enumerate(ranks):
        builder = ExportBuilder()
        add_rank(builder, number, steps, name=name)
        files.append(str(builder.write(folder / f"rank-{number}.sqlite")))
    return files


def test_ranks_whose_traces_begin_with_other_steps(tmp_path: Path) -> None:
    """Steps that vLLM's ranges mark belong together by time; who waits is told, and how steps were matched."""
    turns = [reduced([14_000, 9000]), reduced([9000, 14_000])]
    steps = [{step: turns[step % 2][rank] for step in range(1 + rank, 9)} for rank in range(2)]
    shown = run(*traced_ranks(tmp_path, steps, "execute_context_0(0)_generation_8({})"), "--format", "json")
    found = json.loads(shown.stdout)
    assert found["steps"] == 6
    assert [rank["waiting_ns"] for rank in found["ranks"]] == [2500, 2500]
    (caution,) = found["cautions"]
    assert "rank-1.sqlite 6; 6 are of all ranks, by the time at which hosts begin them" in caution["text"]


def test_stages_of_a_pipeline_in_files_of_their_own(tmp_path: Path) -> None:
    """Each rank is held against its own stage; two stages alone share no collective: their waits are not known."""
    late = [[(name, at + 40_000, ns) for name, at, ns in own] for own in reduced([30_000, 24_000], 9000)]
    files = traced_ranks(
        tmp_path, [dict.fromkeys(range(6), own) for own in (*reduced([5000, 8000]), *late)], "perfgate.step.{}.decode"
    )
    found = json.loads(run(*files, "--format", "json").stdout)
    assert [(rank["waiting_ns"], rank["last_share"]) for rank in found["ranks"]] == [
        (3000, 0),
        (0, 1),
        (0, 1),
        (6000, 0),
    ]
    assert found["cautions"] == []
    three = run(*files[:3]).stdout
    assert "rank-2.sqlite: no other rank leaves collectives with it, so its waiting is not known" in three
    apart = json.loads(run(files[0], files[2], "--format", "json").stdout)
    assert [(rank["waiting_ns"], rank["last"], rank["holds_up_ns"]) for rank in apart["ranks"]] == [
        (None, None, None)
    ] * 2
    (caution,) = apart["cautions"]
    assert caution["text"] == (
        "rank-0.sqlite, rank-2.sqlite: no other rank leaves collectives with it, so its waiting is not known"
    )
    assert "arrives last" not in run(files[0], files[2], "--format", "text").stdout.split("Ranks, mean")[0]


def test_inferred_steps_of_ranks_may_not_be_the_same_ones(tmp_path: Path) -> None:
    """No engine numbered them, and each trace begins at 0 of its own: they are compared by order, with a caution."""
    names = ("nvjet", "flash_fwd_kernel", "ncclDevKernel_AllReduce_Sum", "act_and_mul_kernel", "_gumbel_sample_kernel")
    files = []
    for rank in range(2):
        builder = ExportBuilder()
        for step in range(30):
            at = 100_000 * step
            for number, name in enumerate(names):
                begin = at + 10_000 * number
                builder.launch(name, begin, begin + 2000, begin + 9000 + rank)
            builder.call("cudaStreamSynchronize", at + 60_000, at + 70_000)
        files.append(str(builder.write(tmp_path / f"rank-{rank}.sqlite")))
    (caution,) = [
        one for one in json.loads(run(*files, "--format", "json").stdout)["cautions"] if "in common" in one["text"]
    ]
    assert "all traces are taken to begin with the same step" in caution["text"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_ranks_that_ran_nothing_together(tmp_path: Path, form: str) -> None:
    """There is nothing to compare, so no time is zero."""
    shown = run(two_ranks(tmp_path)[0], str(CAPTURE), "--format", form).stdout
    if form == "text":
        (row,) = (line.split() for line in shown.splitlines() if line.strip().startswith("rank-0.sqlite"))
        assert row == ["rank-0.sqlite", "100.0", "us", *"------"]
        return
    assert {rank["kernels_ns"] for rank in json.loads(shown)["ranks"]} == {None}


def test_a_rank_that_shows_fewer_steps(tmp_path: Path) -> None:
    """Only the steps of all ranks are compared, which is said."""
    one, _ = two_ranks(tmp_path)
    builder = ExportBuilder()
    builder.span("perfgate.step.1", 100_000, 199_000)
    builder.launch("ncclDevKernel_AllReduce_Sum", 101_000, 120_000, 124_000)
    shown = run(one, str(builder.write(tmp_path / "short.sqlite"))).stdout
    assert "steps shown: rank-0.sqlite 3, short.sqlite 1; 1 are of all ranks, by their numbers" in shown


def test_one_trace_is_not_two_ranks(tmp_path: Path) -> None:
    """A file that is given twice, or a copy of it, is refused."""
    one, other = two_ranks(tmp_path)
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(Path(one).read_bytes())
    for second, named in ((one, one), (str(copy), "copy.sqlite")):
        ended = run(one, other, second)
        assert ended.exit_code == 2
        assert f"and {named} hold the same trace: give the trace of each rank once" in ended.output


def test_steps_that_overlap_have_no_negative_idle_time(tmp_path: Path) -> None:
    """Work of a step that lasts into the next one is overlap; no share of a difference is a negative zero."""
    files = []
    for name, length in (("base", 1500), ("head", 1600)):
        builder = ExportBuilder()
        for step in range(4):
            builder.span(f"perfgate.step.{step}.decode", 1000 * step, 1000 * step + 900)
            builder.launch("nvjet", 1000 * step, 1000 * step + 100, 1000 * step + 100 + length, stream=step)
        files.append(str(builder.write(tmp_path / f"{name}.sqlite")))
    content = json.loads(run(files[0], "--diff", files[1], "--format", "json").stdout)
    parts = {part["part"]: (part["base_ns"], part["head_ns"]) for part in content["parts"]}
    assert parts == {
        "gemm": pytest.approx((1500, 1600)),
        "copies, less overlap": pytest.approx((-500, -600)),
        "step": pytest.approx((1000, 1000)),
    }
    assert "-0 %" not in run(files[0], "--diff", files[1]).stdout


def test_several_files_are_ranks_only(tmp_path: Path) -> None:
    """Another table is of one file."""
    ended = run(*two_ranks(tmp_path), "--show", "path")
    assert ended.exit_code == 2
    assert "several files are the ranks of one run: give --show path one file" in ended.output


def traced_memory(folder: Path) -> Path:
    """A trace of PyTorch with two steps of an allocator that keeps a little of each."""
    events: list[dict[str, object]] = []
    level = 1 << 30
    for step in range(2):
        at = 1000 * step
        events.append({"ph": "X", "cat": "user_annotation", "name": f"perfgate.step.{step}", "ts": at, "dur": 900,
                       "pid": 1, "tid": 1})  # fmt: skip
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 500, "pid": 1, "tid": 1})
        for offset, size in ((100, 3 << 20), (200, 1 << 20), (300, -3 << 20)):
            level += size
            detail = {"Device Type": 1, "Device Id": 0, "Bytes": size, "Total Allocated": level,
                      "Total Reserved": 2 << 30}  # fmt: skip
            events.append({"ph": "i", "name": "[memory]", "ts": at + offset, "args": detail})
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_memory_over_time(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """What each device holds at most, when and in which step; JSON and CSV hold each change."""
    file = str(traced_memory(tmp_path))
    golden("kernels-memory.md", run(file, "--show", "memory", "--format", "markdown").stdout)
    content = json.loads(run(file, "--show", "memory", "--format", "json").stdout)
    assert [step["peak_bytes"] - (1 << 30) for step in content["steps"]] == [4 << 20, 5 << 20]
    lines = list(csv.DictReader(io.StringIO(run(file, "--show", "memory", "--format", "csv").stdout)))
    assert [int(line["change_bytes"]) >> 20 for line in lines] == [3, 1, -3] * 2
    assert len(content["changes"]) == len(lines)


def test_memory_that_is_not_recorded_is_said() -> None:
    """With what records it; a step cannot be chosen, because all are shown."""
    assert "nsys with --cuda-memory-usage=true" in run(str(CAPTURE), "--show", "memory").stdout
    ended = run(str(CAPTURE), "--show", "memory", "--step", "300")
    assert ended.exit_code == 2
    assert "--show memory is of the whole file, step by step: give it alone" in ended.output


def test_a_trace_without_steps_has_times_as_a_whole(tmp_path: Path) -> None:
    """From its first kernel to its last end: busy, idle and what hides communication, for each process's device."""
    builder = ExportBuilder()
    for pid in (100, 200):
        builder.launch("nvjet", 0, 1000, 5000, pid=pid)
        builder.launch("ncclDevKernel_AllReduce_Sum", 1000, 4000, 6000, stream=9, pid=pid)
        builder.launch("rms_norm", 2000, 7000, 8000, pid=pid)
    file = str(builder.write(tmp_path / "export.sqlite"))
    content = json.loads(run(file, "--whole", "--format", "json").stdout)
    figures = [(one["process"], one["span_ns"], one["busy_ns"], one["hidden_ns"]) for one in content["steps"]]
    assert figures == [(100, 7000, 6000, 1000), (200, 7000, 6000, 1000)]
    assert "of it hidden" in run(file, "--whole").stdout
    whole, without = (
        json.loads(run(file, *words, "--show", "path", "--format", "json").stdout)["parts"]
        for words in (["--whole"], [])
    )
    assert whole == without


@pytest.mark.parametrize("ranges", [True, False])
def test_inferred_steps_have_breakdown_overlap_and_path(tmp_path: Path, *, ranges: bool) -> None:
    """The same as steps that ranges mark: a graph launched again and again, with communication beside its kernels."""
    builder = ExportBuilder()
    for step in range(30):
        at = 100_000 * step
        if ranges:
            builder.span(f"perfgate.step.{step}", at, at + 95_000)
        builder.launch("_prepare_inputs_kernel", at, at + 105_000, at + 110_000)
        builder.graph(at + 2000, [("nvjet_one", at + 112_000, at + 150_000), ("nvjet_two", at + 151_000, at + 180_000)])
        builder.launch("ncclDevKernel_AllReduce_Sum", at + 5000, at + 170_000, at + 190_000, stream=9)
        builder.launch("_gumbel_sample_kernel", at + 7000, at + 192_000, at + 196_000)
        builder.call("cudaEventSynchronize", at + 9000, at + 90_000)
    file = str(builder.write(tmp_path / "export.sqlite"))
    steps = json.loads(run(file, "--format", "json").stdout)["steps"]
    assert len(steps) >= 28
    assert {(step["communication_ns"], step["hidden_ns"], sum(step["idle_ns"].values())) for step in steps} == {
        (20_000, 10_000, 2000 + 1000 + 2000)
    }
    paths = json.loads(run(file, "--show", "path", "--format", "json").stdout)
    assert {path["path_ns"] for path in paths["paths"][:-1]} == {100_000}
    # Prepare, the first gemm, the all-reduce 20 us after it, and the sampler, behind which the device waits for 9 us.
    device_ns, gap_ns = 5000 + 38_000 + 20_000 + 4000, 2000 + 20_000 + 2000 + 9000
    assert {(path["device_ns"], path["gap_ns"]) for path in paths["paths"][:-1]} == {(device_ns, gap_ns)}


def test_a_whole_trace_takes_what_no_step_holds() -> None:
    """Every kernel of the capture, those outside its steps too."""
    content = json.loads(run(str(CAPTURE), "--whole", "--format", "json").stdout)
    (step,) = content["steps"]
    assert step["launches"] == len(read_trace(CAPTURE).kernels)
    assert content["outside_steps"] == {"launches": 0, "time_ns": 0}
