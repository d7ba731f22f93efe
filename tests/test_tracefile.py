"""Any file given to perfgate kernels: told apart by its content, unpacked, exported, or refused."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from pathlib import Path

import pytest
from nsys_builder import ExportBuilder

from perfgate.capture.tracefile import read_trace
from perfgate.errors import NotMeasuredError, PerfgateError, RecordError

REPORT = b"NVIDIA Tegra Profiler Report 1.\n and so on"


def export(folder: Path) -> Path:
    """An export with one kernel."""
    builder = ExportBuilder()
    builder.launch("kernel", 0, 10, 20)
    return builder.write(folder / "export.sqlite")


def stand_in_for_nsys(folder: Path, body: str) -> str:
    """A PATH on which nsys is a Python program with this body; ``words`` are its arguments."""
    nsys = folder / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(f"#!{sys.executable}\nimport shutil, sys\nwords = sys.argv[1:]\n{body}\n")
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    return str(nsys.parent)


@pytest.mark.parametrize("name", ["trace.sqlite", "trace.nsys-rep", "trace"])
def test_names_do_not_matter(name: str, tmp_path: Path) -> None:
    """An export is one by its content, whatever it is called, packed or not."""
    content = export(tmp_path).read_bytes()
    plain, packed = tmp_path / name, tmp_path / f"{name}.anything"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert len(read_trace(plain).kernels) == len(read_trace(packed).kernels) == 1


def test_a_report_is_exported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report goes through nsys export as SQLite, with its full path, in a folder that holds nothing else."""
    source = export(tmp_path)
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    body = f"""
import os
assert words[:3] == ["export", "--type=sqlite", "--force-overwrite=true"], words
assert words[-1] == {str(report)!r} and not os.listdir(), os.listdir()
shutil.copy({str(source)!r}, words[words.index("-o") + 1])
"""
    monkeypatch.setenv("PATH", stand_in_for_nsys(tmp_path, body))
    monkeypatch.chdir(tmp_path)
    assert len(read_trace(Path("run.nsys-rep")).kernels) == 1


def test_an_export_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of nsys proves nothing: without a file it has failed, in its own words."""
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    body = "print('Importer error: version 2031.1 is newer', file=sys.stderr)"
    monkeypatch.setenv("PATH", stand_in_for_nsys(tmp_path, body))
    with pytest.raises(
        RecordError, match=r"nsys export failed with status 0: Importer error: version 2031\.1 is newer"
    ):
        read_trace(report)


def test_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without nsys is no measurement; the message says what to do."""
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(NotMeasuredError, match=r"no nsys on PATH\n  Install Nsight Systems, or export it elsewhere"):
        read_trace(report)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"step,kernel\n1,gemm\n", "neither an SQLite export of nsys nor a Chrome trace"),
        (gzip.compress(b"{}" * 5000)[:40], "cannot be unpacked: Compressed file ended"),
        (b"\x1f\x8bnot gzip", "cannot be unpacked"),
        (b'{"traceEvents": [{"ph": "X"', "is no whole JSON document"),
        (b'{"some": "thing"}', "no Chrome trace: it has no list of traceEvents"),
        (b'{"traceEvents": [1]}', "no Chrome trace"),
        (b'{"traceEvents": []}', "holds no kernel"),
        (b"[" * 100_000, "is no whole JSON document"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": "soon"}]}', "holds an event that is none"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": 1, "dur": -4}]}', "end before they start"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": 1, "args": {"stream": "x"}}]}',
         "an event with a wrong number"),
        (b"\x00\x01\x02", "neither"),
    ],
)  # fmt: skip
def test_files_that_are_no_trace(content: bytes, words: str, tmp_path: Path) -> None:
    """Each is refused by the user's own name for it, never read as an empty trace."""
    file = tmp_path / "given.bin"
    file.write_bytes(content)
    with pytest.raises(RecordError, match=words) as caught:
        read_trace(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing file and a folder are named as such."""
    for file, words in ((tmp_path / "missing", "does not exist"), (tmp_path, "is no file")):
        with pytest.raises(PerfgateError, match=words):
            read_trace(file)
