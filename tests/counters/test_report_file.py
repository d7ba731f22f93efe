"""Reports of ncu: read through NVIDIA's own package where it is there, told apart from pages, refused when cut."""

from __future__ import annotations

import contextlib
import gzip
import math
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from perfgate.counters.launch_table import GPU_NAME, KernelLaunch, NcuReport
from perfgate.counters.report_file import read_counters
from perfgate.errors import NotMeasuredError, PerfgateError, RecordError
from perfgate.reasons import REASONS

FIXTURES = Path(__file__).parents[1] / "fixtures"
REPORT = FIXTURES / "ncu-2022.3.ncu-rep"
PAGE = FIXTURES / "ncu-2022.3-two.csv"
"""What ncu 2022.3 prints for that report in base units, with two decimals."""


def metric(value: float | str | None, unit: str = "") -> Any:
    """A metric as ncu-report documents it; it answers with something even where there is no value."""
    answers = {"has_value": value is not None, "value": 0.0 if value is None else value, "unit": unit}
    return Mock(**{f"{name}.return_value": answer for name, answer in answers.items()})


RANGES = Mock(**{
    "domains.return_value": (7,),
    "domain_by_id.return_value.push_pop_ranges.return_value": ("step_10", "layer 5"),
    "domain_by_id.return_value.start_end_ranges.return_value": ("perfgate.step.10",),
})  # fmt: skip
"""The ranges open around a launch: of one domain, from the outermost on, and those in no order."""


def action(name: str, metrics: dict[str, Any], ranges: Any = None) -> Any:
    """A launch as ncu-report documents it, its name demangled only where that is asked for."""
    made = MagicMock(NameBase_DEMANGLED=1)
    made.name.side_effect = lambda base=0: name if base == 1 else name.partition("(")[0]
    made.metric_names.return_value = tuple(metrics)
    made.nvtx_state.return_value = ranges
    made.__getitem__.side_effect = metrics.__getitem__
    return made


def stand_in(monkeypatch: pytest.MonkeyPatch, *ranges: list[Any], error: Exception | None = None) -> None:
    """A module with the documented interface in the package's place, which opens any file as these ranges."""

    def load_report(file: str) -> list[list[Any]]:
        assert Path(file).is_file()
        if error is not None:
            raise error
        return list(ranges)

    module: Any = ModuleType("ncu_report")
    module.load_report = load_report
    monkeypatch.setitem(sys.modules, "ncu_report", module)


def as_actions(counted: NcuReport) -> list[Any]:
    """The launches of a page as the package would hand them out."""
    return [
        action(
            kernel.key.name,
            {name: metric(value, kernel.units[name].replace("B", "byte").replace("Hz", "hz"))
             for name, value in kernel.values.items()}
            | {GPU_NAME: metric(kernel.gpu.name)},
        )
        for kernel in counted.launches
    ]  # fmt: skip


def assert_same(kernel: KernelLaunch, other: KernelLaunch) -> None:
    """Both say the same but for the page's two decimals; a report has no process id."""
    assert (kernel.number, kernel.key, kernel.device) == (other.number, other.key, other.device)
    assert (kernel.gpu.architecture, kernel.gpu.name) == (other.gpu.architecture, other.gpu.name)
    assert (kernel.grid, kernel.block, kernel.ranges) == (other.grid, other.block, other.ranges)
    assert kernel.units == other.units
    assert kernel.values == pytest.approx(other.values, rel=1e-9, abs=0.0051)


def test_a_real_report_says_what_ncu_prints_of_it() -> None:
    """Through the real package: every metric of two launches as on the page that ncu 2022.3 printed, unrounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SWIG's own, on import
        pytest.importorskip("ncu_report", reason="needs pip install 'perfgate[ncu]'")

    counted, page = read_counters(REPORT), read_counters(PAGE)

    assert [kernel.key.name for kernel in counted.launches] == [
        "addConstDouble(int, double *, double, double *)",
        "addConstDouble3(int, double3 *, double, double3 *)",
    ]
    for kernel, other in zip(counted.launches, page.launches, strict=True):
        assert_same(kernel, other)
    assert counted.launches[0].read("issued_per_cycle") is None
    assert counted.launches[0].read("waves") == pytest.approx(78.76923076923077)


def test_a_report_gives_the_table_that_a_page_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stand-in, launches in several ranges of results are numbered through and equal those of the page."""
    page = read_counters(PAGE)
    first, second = as_actions(page)
    stand_in(monkeypatch, [first], [second])

    counted = read_counters(REPORT)

    assert (counted.source, counted.messages) == (str(REPORT), ())
    for kernel, other in zip(counted.launches, page.launches, strict=True):
        assert_same(kernel, other)


def test_values_units_and_ranges_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units become base units, texts attributes; what has no value or no finite one is left out; ranges are named."""
    metrics = {
        "gpu__time_duration.sum": metric(1500, "ns"),
        "dram__bytes.sum.per_second": metric(2.5, "Gbyte/s"),
        "absent": metric(None, "%"),
        "endless": metric(math.inf, "%"),
        "undefined": metric(math.nan, "%"),
        "device__attribute_display_name": metric("NVIDIA H200"),
        "empty": metric(""),
        "launch__device_id": metric(3),
        "device__attribute_compute_capability_major": metric(9),
        "device__attribute_compute_capability_minor": metric(0),
        "launch__grid_dim_x": metric(4.0, "block"),
        "launch__grid_dim_y": metric(24.0, "block"),
        "launch__grid_dim_z": metric(1.0, "block"),
    }
    stand_in(monkeypatch, [action("k(int)", metrics, RANGES)])

    (kernel,) = read_counters(REPORT).launches

    assert kernel.read("duration") == pytest.approx(1.5e-6)
    assert (kernel.values["dram__bytes.sum.per_second"], kernel.units["dram__bytes.sum.per_second"]) == (2.5e9, "B/s")
    assert not {"absent", "endless", "undefined", "empty"} & {*kernel.values}
    assert kernel.gpu.name == "NVIDIA H200"
    assert (kernel.key.name, kernel.device, kernel.gpu.architecture, kernel.grid) == ("k(int)", 3, 90, (4, 24, 1))
    assert kernel.ranges == ("step_10", "layer 5", "perfgate.step.10")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package, how to get it, and the way by CSV; its exit status is that of not measured."""
    monkeypatch.setitem(sys.modules, "ncu_report", None)

    with pytest.raises(NotMeasuredError) as refused:
        read_counters(REPORT)

    assert (refused.value.exit_status, refused.value.code) == (22, "counters-not-countable")
    for words in ("package ncu-report", "pip install 'perfgate[ncu]'", "--csv --page raw --print-units base"):
        assert words in str(refused.value)


def test_a_page_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV is read as before."""
    monkeypatch.setitem(sys.modules, "ncu_report", None)

    assert len(read_counters(PAGE).launches) == 2


def test_a_packed_page_is_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Large pages take seconds to unpack, and as much room on the disk each time."""
    packed = tmp_path / "page.csv.gz"
    packed.write_bytes(gzip.compress(PAGE.read_bytes()))
    opened = Mock(wraps=gzip.open)
    monkeypatch.setattr("perfgate.trace.trace_file.gzip.open", opened)

    assert read_counters(packed).launches == read_counters(PAGE).launches
    assert opened.call_count == 1


def test_a_packed_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may be packed by gzip, and headings name the file given; a .ncu-repz goes to the package as it is."""
    stand_in(monkeypatch, as_actions(read_counters(PAGE)))
    packed, compressed = tmp_path / "r.ncu-rep.gz", tmp_path / "r.ncu-repz"
    packed.write_bytes(gzip.compress(REPORT.read_bytes()))
    compressed.write_bytes(b"compressed by ncu")

    assert read_counters(packed).source == str(packed)
    assert len(read_counters(compressed).launches) == 2


def test_a_report_cut_anywhere_but_between_its_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package reads less from it and says nothing, so it is refused before; a cut between blocks cannot be seen."""
    stand_in(monkeypatch, as_actions(read_counters(PAGE)))
    whole, cut = REPORT.read_bytes(), tmp_path / "cut.ncu-rep"
    unseen = 0
    for size in range(4, len(whole)):
        cut.write_bytes(whole[:size])
        with contextlib.suppress(RecordError):
            unseen += len(read_counters(cut).launches) == 2
    assert unseen == 4  # behind the magic number, the file's header and each of two launches
    cut.write_bytes(whole[:-1])
    with pytest.raises(RecordError, match="cut short") as caught:
        read_counters(cut)
    assert caught.value.code == "counters-unreadable"


def test_a_length_beyond_any_place(tmp_path: Path) -> None:
    """A header whose text would end beyond every file is skipped to its end, as one that is too long for it."""
    endless = b"\x0a" + b"\xff" * 9 + b"\x7f"
    file = tmp_path / "endless.ncu-rep"
    file.write_bytes(b"NVR\0" + (len(endless).to_bytes(4, "little") + endless) * 2 + b"\1")
    with pytest.raises(RecordError, match="cut short"):
        read_counters(file)


@pytest.mark.parametrize(
    ("ranges", "error", "kind", "code", "says"),
    [
        ([], None, NotMeasuredError, "counters-missing", "finds no kernel"),
        ([[action("", {})]], None, RecordError, "counters-unreadable", "launch 0 has no name"),
        ([], RuntimeError("protobuf"), RecordError, "counters-unreadable", "cannot be read by ncu-report: protobuf"),
    ],
)
def test_what_the_package_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
    ranges: list[list[Any]],
    error: Exception | None,
    kind: type[PerfgateError],
    code: str,
    says: str,
) -> None:
    """Nothing in it, a launch without a name, an error of its own: each with its reason and the way by CSV."""
    stand_in(monkeypatch, *ranges, error=error)

    with pytest.raises(kind, match=says) as caught:
        read_counters(REPORT)

    assert caught.value.code == code
    assert code in REASONS
    assert "ncu --import" in caught.value.remedy
