"""Any file given to perfgate kernels: told apart by its content, unpacked, exported, or refused."""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_builder import ExportBuilder

from perfgate.errors import NotMeasuredError, PerfgateError, RecordError
from perfgate.trace.breakdown import figures
from perfgate.trace.trace_file import read_trace

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
    packed.write_bytes(gzip.compress(content, mtime=0))
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
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"step,kernel\n1,gemm\n", "neither an SQLite export of nsys nor a Chrome trace"),
        (gzip.compress(b"{}" * 5000, mtime=0)[:40],
         r"cannot be unpacked: Compressed file ended(.|\n)*Copy it again\. Was the profiler stopped"),
        (b'{"traceEvents": [], "traceEvents" : []}', "holds several lists of traceEvents, of which JSON keeps"),
        (b'{"traceEvents": []}\n{"traceEvents": []}', "holds more than one JSON text: another one begins at byte 20"),
        (b"\x1f\x8bnot gzip", "cannot be unpacked"),
        (b'{"traceEvents": [{"ph": "X"', "incomplete JSON: it ends within what begins at byte 27\n  Was the profiler"),
        (b'{"some": "thing"}', "no Chrome trace: it has no list of traceEvents"),
        (gzip.compress(b'{"some": "thing"}', mtime=0), "no Chrome trace: it has no list of traceEvents"),
        (b'{"traceEvents": [1]}', "no Chrome trace"),
        (b'{"traceEvents": []}', "holds no kernel"),
        (b"[" * 100_000, "invalid JSON: lists within lists, deeper than any trace"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": "soon"}]}', "a damaged event: event 0: ts"),
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


EVENT = """{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "g\u00e9mm", "ts": 1.5, "dur": 2,
 "args": {"queued": true, "note": "\\u00b5s"}}]}"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_mark_of_the_byte_order_is_read(encoding: str, tmp_path: Path) -> None:
    """As is JSON in a wider encoding, which a shell may have written; packed or not."""
    content = EVENT.encode(encoding)
    for name, written in (("trace.json", content), ("trace.gz", gzip.compress(content, mtime=0))):
        file = tmp_path / name
        file.write_bytes(written)
        trace = read_trace(file)
        assert (trace.names.demangled, trace.kernels.start_ns.tolist()) == (("g\u00e9mm",), [1500])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_that_is_cut_short_anywhere(encoding: str, tmp_path: Path) -> None:
    """Wherever it ends, within a character, a word, a number or an escape, the question is whether it was stopped."""
    content = EVENT.encode(encoding)
    file = tmp_path / "trace.json"
    begin = len("{".encode(encoding))
    for length in range(begin, len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(RecordError, match=r"incomplete JSON: it ends .*\n  Was the profiler stopped"):
            read_trace(file)


@pytest.mark.parametrize(
    ("old", "new", "after", "words"),
    [
        (b"gemm", b"ge\x1bm", 2, "a string holds the control character 0x1b at byte #\n  tr -d '\\000-\\037' leaves"),
        (b"gemm", b"ge\nm", 2, "a string holds the control character 0x0a at byte #"),
        (b"gemm", b"ge\xffm", 2, "byte # is 0xff, which is not UTF-8\n  iconv -c -f UTF-8 -t UTF-8 leaves"),
        (b"gemm", b"ge\xc3m", 2, "byte # is 0xc3, which is not UTF-8"),
        (b"2}", b"nan}", 0, "expecting value at byte #, where 'nan}]}' is"),
        (b"2}", b"2 2}", 2, "expecting ',' delimiter at byte #, where '2}]}' is"),
        (b"]}", b"]}\n{}", 3, "holds more than one JSON text: another one begins at byte #\n  Give one trace a file"),
        (b"]}", b"]}\n\x00\x00", 3, "after its end comes '\\x00\\x00' at byte #"),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_json_that_is_wrong_within(mark: bytes, old: bytes, new: bytes, after: int, words: str, tmp_path: Path) -> None:
    """It says what is wrong, at which byte of the file, and what to do; it asks for no profiler that was stopped."""
    whole = mark + '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "\u00b5 gemm", "ts": 1, "dur": 2}]}'.encode()
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(whole.replace(old, new), mtime=0))
    with pytest.raises(RecordError) as caught:
        read_trace(file)
    assert words.replace("#", str(whole.index(old) + after)) in str(caught.value)
    assert "stopped" not in str(caught.value)


def test_what_unpacks_beyond_all_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that unpacks to a large one is refused, and what was unpacked is gone."""
    monkeypatch.setattr("perfgate.trace.trace_file.MAX_UNPACKED_BYTES", 1000)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    bomb = tmp_path / "bomb.gz"
    for size, words in ((1000, "neither"), (1001, "bomb.gz: unpacks to more than 1000 bytes\n  Trace fewer")):
        bomb.write_bytes(gzip.compress(bytes(size), mtime=0))
        with pytest.raises(RecordError, match=words):
            read_trace(bomb)
    assert not list(folder.iterdir())


def test_a_small_file_that_would_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by how much larger than itself it gets, long before the bound of all files."""
    monkeypatch.setattr("perfgate.trace.trace_file.SMALL_BYTES", 1 << 16)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 20), mtime=0))
    with pytest.raises(RecordError, match=f"unpacks to more than {100 * bomb.stat().st_size} bytes"):
        read_trace(bomb)


def test_a_path_of_any_bytes(tmp_path: Path) -> None:
    """A file is read whatever bytes its name has."""
    file = export(tmp_path).rename(tmp_path / os.fsdecode(b"trace-\xff%20?.sqlite"))
    assert len(read_trace(file).kernels) == 1


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A folder, and a small whole file of each sort."""
    folder = tmp_path_factory.mktemp("samples")
    builder = ExportBuilder("2024.2")
    for n in range(3):
        builder.span(f"perfgate.step.{n}", n * 1000, n * 1000 + 900, registered=n == 1)
        builder.launch("void gemm<(int)4>(T1 *)", n * 1000, 9000 + n * 100, 9050 + n * 100)
        builder.copy(1, n * 1000 + 10, 9060 + n * 100, 9070 + n * 100, 64)
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.5, "dur": 2.25, "pid": 0, "tid": 7,
         "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 2, 3], "block": [4, 5, 6]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "pid": 9, "tid": 9,
         "args": {"correlation": 3}},
        {"ph": "X", "cat": "user_annotation", "name": "perfgate.step.1", "ts": 0, "dur": 9, "pid": 9, "tid": 9},
    ]  # fmt: skip
    export = builder.write(folder / "export.sqlite").read_bytes()
    return folder, {"sqlite": export, "json": json.dumps({"traceEvents": events}).encode()}


@settings(max_examples=4 * settings().max_examples)
@given(st.sampled_from(["sqlite", "json"]), st.data())
def test_any_damage_is_an_error_or_harmless(
    samples: tuple[Path, dict[str, bytes]], sort: str, data: st.DataObject
) -> None:
    """Whatever bytes change or are missing, a file is refused in words or read with kernels; nothing else is raised."""
    folder, whole = samples
    content = bytearray(whole[sort])
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    file = folder / "damaged"
    file.write_bytes(content)
    refused, trace = None, None
    try:
        trace = read_trace(file)
    except PerfgateError as error:
        refused = str(error)
    if trace is None:
        assert refused is not None
        assert refused.startswith(f"{file}: ")
    else:
        assert len(trace.kernels)
        assert figures(trace).kernel_ns.sum() <= trace.kernels.duration_ns.sum()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing file and a folder are named as such."""
    for file, words in ((tmp_path / "missing", "does not exist"), (tmp_path, "not a file")):
        with pytest.raises(PerfgateError, match=words):
            read_trace(file)
