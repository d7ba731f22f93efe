"""Counters beside time: what is joined by what, what stays alone, and how it is shown."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from perfgate.cli.main import main
from perfgate.counters.launch_table import KernelLaunch, NcuReport
from perfgate.counters.report_file import read_counters
from perfgate.counters.trace_join import Identity, Join, Row, join
from perfgate.errors import NotComparableError
from perfgate.kernels.joined_counters import COLUMNS
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.report.formats import render
from perfgate.scenario.kernel_names import UNLISTED
from perfgate.trace.decode_step import KernelKey
from perfgate.trace.selection import Selection, by_kernel, select
from perfgate.trace.trace_file import read_trace

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests/fixtures/h200-llama-8b-decode.sqlite.gz"
PAGE = ROOT / "tests/fixtures/h200-llama-8b-decode.ncu.csv.gz"
"""Sixty launches of one decode step of the same workload: what comes before the layers, and almost four of those."""


@functools.cache
def selection() -> Selection:
    """The decode steps of the recorded trace."""
    return select(read_trace(TRACE))


@functools.cache
def counted() -> NcuReport:
    """The recorded counters; the file's name is short, so that it may stand in golden files."""
    return replace(read_counters(PAGE), source="decode.csv")


def some(keep: Callable[[KernelLaunch], bool]) -> NcuReport:
    """Those of the recorded launches."""
    return replace(counted(), launches=tuple(kernel for kernel in counted().launches if keep(kernel)))


def called(launch: KernelLaunch, name: str) -> KernelLaunch:
    """The same launch of a kernel of this name, which no rule knows."""
    return launch.model_copy(update={"key": KernelKey(role=UNLISTED, name=name)})


def rows(found: Join, kernel: str) -> list[Row]:
    """Its rows for a kernel by a part of its name."""
    return [row for row in found.rows if kernel in row.kernel]


def run(*words: str) -> Result:
    """``perfgate kernels`` of the recorded trace with these words."""
    return CliRunner().invoke(main, ["kernels", str(TRACE), *words])


def test_every_counted_launch_finds_its_time() -> None:
    """Though ncu and nsys spell the names of attention and of PyTorch's kernels apart, all sixty are joined."""
    found = join(selection(), counted())

    assert all(row.timed for row in found.rows)
    assert sum(len(row.counted.launches) for row in found.rows if row.counted) == 60
    assert {row.joined_by for row in found.rows if row.counted} == {"name, shape, place", "name, shape"}
    (attention,) = rows(found, "FlashAttnFwdSm90")
    assert attention.counted is not None
    assert attention.counted.moved == pytest.approx(17_257_344)


@pytest.mark.parametrize(("last", "out"), [(60, 270_656.0), (24, 270_592.0)], ids=["four-layers", "one-layer"])
def test_one_kernel_at_two_places_keeps_two_counts(last: int, out: float) -> None:
    """The split-K reductions of two products agree in name and shape; by their place each has its own bytes."""
    found = join(selection(), some(lambda kernel: kernel.number < last))
    moved = {row.identity.place: row.counted.moved for row in rows(found, "splitKreduce") if row.counted}
    assert moved == {"out": out, "down": 532_736.0}
    assert all(row.timed for row in found.rows)


def test_the_bytes_of_a_step_agree_with_the_models_count() -> None:
    """Launches of the trace times bytes of ncu are what config.json says a step moves, less the matrix not counted."""
    config = read_config(ROOT / "scenarios/models/llama-8b")
    demand = step_demand(config, {}, batch=8, input_tokens=512, output_tokens=20)  # ncu counted at this context
    lm_head = 2 * config["vocab_size"] * config["hidden_size"]

    total = math.fsum(row.step_bytes or 0.0 for row in join(selection(), counted()).rows)

    assert total == pytest.approx(demand.bytes_moved - lm_head, rel=0.03)


def test_time_is_the_traces_alone() -> None:
    """Whatever ncu says how long its launches took, every row's time stays, and they add up to the step's."""
    slow = replace(
        counted(),
        launches=tuple(
            kernel.model_copy(update={"values": {**kernel.values, "gpu__time_duration.sum": 9.0}})
            for kernel in counted().launches
        ),
    )
    found = join(selection(), slow)

    usual = join(selection(), counted()).rows
    assert [(row.launches, row.time_ns) for row in found.rows] == [(row.launches, row.time_ns) for row in usual]
    total = sum(one.time_ns for one in by_kernel(selection())) / selection().steps
    assert found.time_ns == pytest.approx(total)
    assert "9.000 s" not in render("joined", "text", found)


def test_what_is_on_one_side_alone_is_shown_as_such() -> None:
    """A kernel that was not counted has time only; one that the steps do not run has counters only, at the end."""
    (first, *_) = counted().launches
    found = join(selection(), replace(counted(), launches=(called(first, "stranger"), *counted().launches)))

    (lm_head,) = rows(found, "nvjet_sm90_tst_256x8")
    assert (lm_head.counted, lm_head.joined_by) == (None, "")
    assert (found.rows[-1].kernel, found.rows[-1].timed, found.rows[-1].step_bytes) == ("stranger", False, None)
    text = render("joined", "text", found)
    assert "time only" in text
    assert "counters only" in text


def test_places_need_the_kernels_between_the_gemms() -> None:
    """Gemms counted alone are joined by name and shape, and the reductions of two products share their counters."""
    found = join(selection(), some(lambda kernel: "nvjet" in kernel.key.name or "splitK" in kernel.key.name))

    assert {row.joined_by for row in found.rows if row.counted} == {"name, shape"}
    assert len({row.counted.moved for row in rows(found, "splitKreduce") if row.counted}) == 1


def test_another_shape_is_joined_by_name_last() -> None:
    """A grid that no traced launch has is joined by the name alone, and is said to be."""
    grown = some(lambda kernel: "FlashAttnFwdSm90" in kernel.key.name)
    grown = replace(grown, launches=tuple(kernel.model_copy(update={"grid": (264, 1, 1)}) for kernel in grown.launches))

    (attention,) = rows(join(selection(), grown), "FlashAttnFwdSm90")

    assert (attention.joined_by, attention.identity.shape[0]) == ("name", 132)


def of_another_model(kernel: KernelLaunch) -> KernelLaunch:
    """The same kernel as a model with wider layers launches it: what works on a token is alike, products are not."""
    wider = kernel.grid[0], 2 * kernel.grid[1], kernel.grid[2]
    return kernel.model_copy(update={"grid": wider}) if "nvjet" in kernel.key.name else kernel


def test_counters_of_another_model_are_refused() -> None:
    """They agree in every name and in most shapes, but not in the products, which move nearly all bytes."""
    other = replace(counted(), launches=tuple(map(of_another_model, counted().launches)))
    assert sum(map(operator.eq, other.launches, counted().launches)) > len(other.launches) / 2

    with pytest.raises(NotComparableError, match=r"only 4% of what ncu counted .* nvjet_sm90_tst_128x8") as refused:
        join(selection(), other)

    assert (refused.value.code, refused.value.where) == ("counters-other-workload", "decode.csv")


def test_the_share_of_counters_that_fit_is_of_the_whole_trace() -> None:
    """One layer is shown with the counters of a step: launches that are not shown are in the trace all the same."""
    found = join(select(selection().trace, 260, 5), counted())
    assert found.share == 1
    mixed = replace(counted(), launches=(*counted().launches, of_another_model(counted().launches[11])))
    assert 0.97 < join(selection(), mixed).share < 0.98


def test_without_bytes_every_launch_weighs_the_same() -> None:
    """A file that holds registers alone is held against the trace by its launches."""
    bare = [kernel.model_copy(update={"values": {}}) for kernel in counted().launches]
    strange = [called(kernel, "stranger") for kernel in bare[:20]]
    assert join(selection(), replace(counted(), launches=(*bare, *strange))).share == pytest.approx(0.75)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_the_warnings_of_ncu_are_shown(form: str) -> None:
    """What ncu says about its own figures stands beside them."""
    warm = "==WARNING== Note: Running with uncontrolled GPU caches. Profiling results may be inconsistent."
    assert "Running with uncontrolled GPU caches" in render(
        "joined", form, join(selection(), replace(counted(), messages=(warm,)))
    )


@functools.cache
def timed_identities() -> set[Identity]:
    """What step 260 runs."""
    return {row.identity for row in join(select(selection().trace, 260), counted()).rows if row.timed}


@given(st.lists(st.sampled_from(range(60)), min_size=1, max_size=60))
def test_nothing_is_lost_or_counted_twice(chosen: list[int]) -> None:
    """Of any launches counted, in any order, each stands in one row, or in all rows that it is pooled for."""
    step = select(selection().trace, 260)
    found = join(step, replace(counted(), launches=tuple(counted().launches[n] for n in chosen)))

    assert {row.identity for row in found.rows if row.timed} == timed_identities()
    assert {kernel.number for row in found.rows if row.counted for kernel in row.counted.launches} == set(chosen)


def test_the_recording_as_text(golden: Callable[[str, str], None]) -> None:
    """Roles and kernels with time and counters, the rules, and the trace's own caution."""
    golden("kernels-counters.txt", render("joined", "text", join(selection(), counted())))


def test_a_layer_as_markdown(golden: Callable[[str, str], None]) -> None:
    """One layer of one step, with a kernel of another GPU that the step does not run."""
    h100 = counted().launches[0].gpu.model_copy(update={"name": "NVIDIA H100"})
    (first, *rest) = (kernel.model_copy(update={"gpu": h100}) for kernel in counted().launches[11:24])
    other = called(first, "evil\x1b[31m<b>|@you")
    layer = select(selection().trace, 260, 5)
    both = replace(counted(), launches=(other, first, *rest), messages=("==WARNING== caches of <b>|@you\x1b[31m",))

    text = render("joined", "markdown", join(layer, both))

    golden("kernels-counters.md", text)
    assert "counters-other-workload" in text
    assert "caches of" in text
    assert not [part for part in ("\x1b", "<b>", "@you") if part in text]


def test_json_and_csv_hold_the_same() -> None:
    """Each kernel with the values of both sides in base units; what one side does not have is null, or empty."""
    content = json.loads(run("--counters", str(PAGE), "--format", "json").stdout)
    lines = list(csv.DictReader(io.StringIO(run("--counters", str(PAGE), "--format", "csv").stdout)))

    assert content["steps"] == 127
    assert set(content["kernels"][0]) == set(COLUMNS)
    gate_up = content["kernels"][0]
    assert (gate_up["place"], gate_up["bound"], gate_up["launches_counted"]) == ("gate-up", "memory", 4)
    assert gate_up["roof_distance"] == pytest.approx(1.19, abs=0.01)
    assert gate_up["dram_bytes_per_step"] == 32 * gate_up["dram_bytes_per_launch"] == 32 * 237_710_976
    for one, line in zip(content["kernels"], lines, strict=True):
        assert {name: "" if value is None else str(value) for name, value in one.items()} == line


def test_a_scrubbed_copy_has_no_counters(tmp_path: Path) -> None:
    """Both options at once are refused, and nothing is written."""
    ended = run("--counters", str(PAGE), "--scrub", str(tmp_path / "copy.sqlite"))

    assert ended.exit_code == 2
    assert "give one of them" in ended.stderr
    assert not list(tmp_path.iterdir())
