"""Any trace that perfgate reads, whatever wrote it: told apart by what a file begins with."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfgate.errors import NotMeasuredError, RecordError
from perfgate.models import Note
from perfgate.scenario.kernel_names import RoleRule
from perfgate.trace.assembly import NoKernelError
from perfgate.trace.chrome_events import STOPPED, begins_json
from perfgate.trace.event_formats import read_events
from perfgate.trace.kernel_table import NONE, Trace
from perfgate.trace.limits import MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO, SMALL_BYTES
from perfgate.trace.nsys import read_nsys
from perfgate.trace.nsys_export import MAGIC
from perfgate.trace.torch_profiler import read_recording
from perfgate.units import listed

_REPORT = b"NVIDIA Tegra Profiler Report"
"""What a report of nsys begins with, 2022.4 to 2024.2 at least."""

EXPORT_TIMEOUT_S = 600.0
"""A report of 100,000 kernels takes seconds."""

NAMED = 5
"""Files that a caution names."""
_BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def read_trace(file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a file.

    Args:
        file: A report of nsys (``.nsys-rep``, exported first), an SQLite export, or a Chrome trace (JSON) of PyTorch's
            profiler, of an Ascend profiler or ONNX Runtime, or TensorRT's profile of layers; all but the report also
            with gzip.
        roles: The scenario's own roles.

    Raises:
        RecordError: It is none of these, or cannot be read.
        NotMeasuredError: It is a report, and there is no nsys that exports it.
    """
    with as_plain_file(file) as plain:
        with plain.open("rb") as stream:
            head = stream.read(1024)
        trace = None
        if head.startswith(MAGIC):
            trace = read_nsys(plain, roles)
        elif begins_json(head):
            trace = read_recording(read_events(plain), plain, roles)
        if trace is not None:  # what is unpacked is gone when somebody reads of it
            return dataclasses.replace(trace, where=str(file))
    if not head:
        raise RecordError("is empty", where=str(file), remedy="The profiler wrote nothing into it: see its messages.")
    raise RecordError(
        "is neither an SQLite export of nsys nor a Chrome trace of PyTorch's profiler, nor a whole report of nsys",
        where=str(file),
        remedy="What ncu wrote is for perfgate counters FILE. Trace with nsys or a scenario's kernels: block.",
    )


def read_ranks(files: Sequence[Path], roles: Sequence[RoleRule] = ()) -> list[tuple[Path, Trace]]:
    """The traces of ranks, each with its file; what is of no rank is set aside, as the first one's cautions then say.

    A process that runs no model leaves a trace too, as the front end of vLLM's server does (``async_llm``). It shows
    no work of a device where the ranks' do; on the CPU it shows no step.

    Args:
        files: At least one.
        roles: As in :func:`read_trace`.

    Raises:
        RecordError: As :func:`read_trace`; of files without a kernel only where all are.
        NotMeasuredError: As :func:`read_trace`.
    """
    traces: list[tuple[Path, Trace]] = []
    empty: list[NoKernelError] = []
    for file in files:
        try:
            traces.append((file, read_trace(file, roles)))
        except NoKernelError as error:
            empty.append(error)
    if not traces:
        raise empty[0]
    signs = ([_has_device(trace) for _, trace in traces], [_has_steps(trace) for _, trace in traces])
    shown = next((sign for sign in signs if any(sign)), [True] * len(traces))
    ranks = [rank for rank, is_rank in zip(traces, shown, strict=True) if is_rank]
    kept = {file for file, _ in ranks}
    aside = [file.name for file in files if file not in kept]
    if aside:
        first, trace = ranks[0]
        text = f"set aside, because the others alone show what ranks run: {listed(aside, NAMED)}"
        notes = (*trace.cautions, Note(code="not-recorded", text=text))
        ranks[0] = first, dataclasses.replace(trace, cautions=notes)
    return ranks


def _has_device(trace: Trace) -> bool:
    return bool((trace.kernels.device != NONE).any())


def _has_steps(trace: Trace) -> bool:
    return bool(len(trace.steps))


@contextlib.contextmanager
def as_plain_file(file: Path) -> Iterator[Path]:
    """The file itself, or for the length of the block what it unpacks or exports to, in a temporary folder.

    Raises:
        RecordError: It does not exist, or cannot be unpacked within
            :data:`perfgate.trace.limits.MAX_UNPACKED_BYTES`.
        NotMeasuredError: It is a report, and there is no nsys that exports it.
    """
    if not file.is_file():
        raise RecordError("not a file" if file.exists() else "does not exist", where=str(file))
    with file.open("rb") as stream:
        head = stream.read(len(_REPORT))
    packed = head.startswith(_GZIP)
    if not packed and head != _REPORT:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        plain = Path(folder) / (file.name.removesuffix(".gz") if packed else f"{file.stem}.sqlite")
        try:
            _unpack(file, plain) if packed else _export(file, plain)
            yield plain
        except RecordError as error:  # the reader's file is a copy; the user knows another one
            if error.where == str(plain):
                error.where = str(file)
            raise


def _unpack(file: Path, target: Path) -> None:
    try:
        with gzip.open(file) as source, target.open("wb") as sink:
            # A trace packs to a tenth, zeros to a thousandth: a small file may not fill the disk.
            most = left = min(MAX_UNPACKED_BYTES, max(SMALL_BYTES, MAX_UNPACKED_RATIO * file.stat().st_size))
            while block := source.read(min(_BLOCK_BYTES, left + 1)):
                left -= len(block)
                if left < 0:
                    text = f"unpacks to more than {most} bytes"
                    raise RecordError(text, where=str(file), remedy="Trace fewer iterations, or unpack it by hand.")
                sink.write(block)
    except (EOFError, zlib.error, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        remedy = "Free some space for temporary files (TMPDIR)." if full else "Copy it again."
        remedy += f" {STOPPED}" * isinstance(error, EOFError)
        raise RecordError(f"cannot be unpacked: {error}", where=str(file), remedy=remedy) from error


def _export(report: Path, target: Path) -> None:
    """Let nsys export a report; its exit status proves nothing, the file does."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NotMeasuredError(
            "is a report that only nsys can open, and there is no nsys on PATH",
            where=str(report),
            remedy="Install Nsight Systems, or export it elsewhere: nsys export --type=sqlite REPORT.",
        )
    try:
        ended = subprocess.run(  # noqa: S603 (the user's own nsys)
            [nsys, "export", "--type=sqlite", "--force-overwrite=true", "-o", str(target), str(report.resolve())],
            cwd=target.parent,  # nsys's own Python picks up what is in the working folder
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=EXPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        text = f"nsys export did not end within {EXPORT_TIMEOUT_S:.0f} s"
        raise RecordError(text, where=str(report), remedy="Trace fewer iterations, or export it by hand.") from None
    if not target.is_file():
        message = (ended.stderr.strip() or ended.stdout.strip() or "no message").splitlines()[-1]
        text = f"nsys export failed with status {ended.returncode}: {message}"
        remedy = "A report opens in the version that wrote it, or a newer one."
        raise RecordError(text, where=str(report), remedy=remedy)
