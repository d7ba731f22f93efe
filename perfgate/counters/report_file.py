"""Any file with counters that perfgate reads: ncu's raw page as CSV, or a report of ncu through NVIDIA's own reader.

A report is opened by the optional package ``ncu-report`` (``pip install perfgate[ncu]``), which needs neither a GPU nor
ncu. From a file that is cut short it yields nothing or some of the launches, without a word, so that the file's blocks
are walked first; their layout is in the Customization Guide of Nsight Compute, "Report File Format".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfgate.counters.launch_table import COUNTERS, GPU_NAME, KernelLaunch, NcuReport
from perfgate.counters.ncu_csv import launch_of, read_page
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.trace.trace_file import as_plain_file

_MAGIC = b"NVR\0"
_COMPRESSED = ".ncu-repz"
"""Reports as ncu compresses them since 2025.4, whose blocks are not walked."""
_LENGTH = 4
"""Bytes of the number before each header."""
_PAYLOAD = 5
"""Field of a block's header: how many bytes follow it."""
_TEXT = 2
"""Wire type of a length and its bytes; 0 is a number."""
_DEVICES = 2**16
"""More GPUs than any host has."""
_CSV = "ncu --import REPORT.ncu-rep --csv --page raw --print-units base > FILE.csv prints what can be read without it."


def read_counters(file: Path) -> NcuReport:
    """Every launch in what ncu left: its raw page as CSV or its report (``.ncu-rep``, ``.ncu-repz``); gzip is fine.

    A report holds exact values where the page has two decimals, and neither process ids nor ncu's own messages.

    Raises:
        RecordError: It is neither, is cut short, the package cannot read it, or a counter's unit is none of its own.
        NotMeasuredError: ``counters-not-countable``: it is a report, and the package is not there;
            ``counters-missing``: it holds no kernel; or see :func:`perfgate.counters.ncu_csv.read_page`.
    """
    with as_plain_file(file) as plain:
        with plain.open("rb") as stream:
            is_report = stream.read(len(_MAGIC)) == _MAGIC
        if not is_report and plain.suffix != _COMPRESSED:
            return _in_known_units(read_page(plain.read_bytes(), str(file)))
        if is_report and _cut_short(plain):
            what = "the report is cut short: a block goes on beyond its end"
            raise RecordError(what, where=str(file), code="counters-unreadable")
        return _in_known_units(NcuReport(str(file), tuple(_launches(plain, str(file)))))


def _in_known_units(report: NcuReport) -> NcuReport:
    """The same, if every counter of perfgate's table is in a unit of its own.

    Raises:
        RecordError: ``counters-unreadable``, with file and kernel.
    """
    for launch in report.launches:
        for counter in COUNTERS.values():
            try:
                counter.read(launch)
            except RecordError as error:
                where = f"{report.source}: {error.where}"
                raise RecordError(error.text, where=where, code=error.code) from error
    return report


def _launches(file: Path, where: str) -> Iterator[KernelLaunch]:
    try:
        import ncu_report  # noqa: PLC0415 (optional: only reports need it)

        actions = [action for results in ncu_report.load_report(str(file)) for action in results]
    except ImportError as error:
        text = f"is a report of ncu, and the package ncu-report that opens it is not there ({error})"
        remedy = f"pip install 'perfgate[ncu]'. {_CSV}"
        raise NotMeasuredError(text, where=where, remedy=remedy, code="counters-not-countable") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(f"cannot be read by ncu-report: {error}", where) from error
    if not actions:
        what = "ncu-report finds no kernel in it: nothing was counted, or a newer ncu wrote it"
        remedy = f"pip install --upgrade ncu-report; it must be as new as the ncu that wrote it. {_CSV}"
        raise NotMeasuredError(what, where=where, remedy=remedy, code="counters-missing")
    for number, action in enumerate(actions):
        yield _launch(action, number, where)


def _launch(action: Any, number: int, where: str) -> KernelLaunch:
    name = action.name(action.NameBase_DEMANGLED)
    if not name:
        raise _unreadable(f"launch {number} has no name", where)
    figures: dict[str, tuple[float, str]] = {}
    gpu = ""
    for metric in sorted(action.metric_names()):
        read = action[metric]
        value = read.value() if read.has_value() else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[metric] = value, read.unit() or ""
        elif metric == GPU_NAME and isinstance(value, str):
            gpu = value
    ordinals = (figures.get(name) for name in ("launch__device_id", "device__attribute_device_index"))
    device, _ = next(filter(None, ordinals), (0.0, ""))
    if not 0 <= device < _DEVICES:
        raise _unreadable(f"launch {number} ran on device {device:g}", where)
    metrics = [(metric, *figure) for metric, figure in figures.items()]
    ranges = tuple(_ranges(action.nvtx_state()))
    return launch_of(name, metrics, gpu=gpu, number=number, device=int(device), ranges=ranges)


def _ranges(state: Any) -> Iterator[str]:
    """The names of the ranges open around a launch, whatever their domain."""
    for domain in state.domains() if state is not None else ():
        info = state.domain_by_id(domain)
        yield from (*info.push_pop_ranges(), *info.start_end_ranges())


def _unreadable(what: str, where: str) -> RecordError:
    remedy = f"Copy it again; a report needs an ncu-report as new as its ncu. {_CSV}"
    return RecordError(what, where=where, remedy=remedy, code="counters-unreadable")


def _cut_short(file: Path) -> bool:
    """Whether a length in the report points beyond its end, or a block has no header."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(len(_MAGIC))
        is_block = False  # the file has a header of its own first, with nothing behind it
        while raw := stream.read(_LENGTH):
            length = int.from_bytes(raw, "little")
            header = stream.read(length)
            payload = _payload(header) if is_block else 0
            if len(raw) < _LENGTH or not header or len(header) < length or stream.tell() + payload > size:
                return True
            stream.seek(payload, 1)
            is_block = True
    return False


_FIELD = re.compile(rb"(?P<key>[\x00-\x7f])(?P<value>[\x80-\xff]{0,9}[\x00-\x7f])", re.DOTALL)
"""A number or the length of a text in a Protocol Buffers message, whose fields are below 16: a key, then groups of
seven bits, of which the last one has no high bit."""


def _payload(header: bytes) -> int:
    """The bytes that follow a block, by its header; none where it does not say."""
    offset = 0
    while offset < len(header) and (field := _FIELD.match(header, offset)):
        value: int = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(field["value"]))
        number, kind = divmod(field["key"][0], 8)
        if number == _PAYLOAD:
            return value
        offset = field.end() + (value if kind == _TEXT else 0)
    return 0
