"""What ncu counted: the raw page as CSV, as ``ncu --csv --page raw`` prints it, log lines and all.

The page is a heading, a row of units and a row for each launch; columns are found by name, because NVTX, versions
and the metrics asked for move them. ncu prints it on standard output between its own lines and the program's. Base
units are asked for by ``--print-units base`` and scaled ones understood all the same; K is 1000 (ncu 2022.3 prints one
report's 2055220720 byte as 2.055221 Gbyte).
"""

from __future__ import annotations

import csv
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perfgate.counters.launch_table import GPU_NAME, Device, KernelLaunch, NcuReport
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.trace.decode_step import KernelKey
from perfgate.trace.families import classify

IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
)  # fmt: skip
"""Columns that say which launch; what is between the metrics and these is NVTX."""

_FATAL = (
    ("ERR_NVGPUCTRPERM", "counters-no-permission", "the driver permits counters to administrators only"),
    ("driver resource was unavailable", "counters-busy", "another profiler or DCGM holds the GPU's counters"),
)
_WITHOUT_ROWS = (
    *_FATAL,
    ("Failed to access the following", "counters-busy", "ncu may not read some metrics here, as on a part of a GPU"),
    ("Failed to find metric", "counters-not-countable", "this ncu does not know a metric for this GPU"),
    ("failed to connect to the CUDA driver", "counters-not-countable", "ncu found no CUDA driver"),
    ("No kernels were profiled", "counters-missing", "no kernel was counted: ncu's filters matched none, or none ran"),
)
"""What ncu prints, our reason for it, and what that means; the first that occurs is the cause."""

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,2})?")
"""So long that no product or quotient of two leaves the range of a float."""
_DOT_GROUPS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:\.[0-9]{3}){1,12}")
"""Thousands separated by dots, as in German: ncu writes two decimals or six, never three."""
_ORDINAL = re.compile(r"[0-9]{1,10}")
_INSTANCES = {")": ("(", ";"), "}": ("{", "")}
"""What the values of a metric's instances end with, begin with and hold."""
MAX_LINES = 100
"""Lines of one row; only the name of a range may hold line ends."""
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 60
_MISSING = {"", "n/a", "nan", "-nan", "inf", "-inf", "(!) n/a"}

_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
             "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip
_BASES = {"second": "s", "s": "s", "byte": "B", "B": "B", "hz": "Hz", "Hz": "Hz", "cycle": "cycle", "inst": "inst",
          "sector": "sector", "sectors": "sector", "request": "request"}  # fmt: skip
_UNIT = re.compile(
    rf"({'|'.join(sorted(_PREFIXES, key=len, reverse=True))})({'|'.join(sorted(_BASES, key=len, reverse=True))})"
)


def read_page(content: bytes, source: str) -> NcuReport:
    """Every launch in a file that holds ncu's raw page as CSV; ``source`` names it in errors.

    Raises:
        RecordError: It is none: empty, cut short, another page, a report, or something else.
        NotMeasuredError: It holds ncu's own account of why nothing was counted.
    """
    if not content.strip():
        raise RecordError("is empty", where=source, code="counters-unreadable")
    if b"\0" in content[:4096]:
        raise _unreadable("neither text nor a report of ncu", source)
    return parse_ncu(content.decode("utf-8-sig", "replace"), source)


def parse_ncu(text: str, source: str) -> NcuReport:
    """Every launch in what ncu printed; ``source`` names it in errors.

    Raises:
        RecordError: See :func:`read_page`.
        NotMeasuredError: See :func:`read_page`.
    """
    page = _Page(source)
    launches = tuple(page.read(text.splitlines()))
    fault = _fault(page.log, _FATAL, source) if launches else cause_in(page.log, source)
    if fault is not None:
        raise fault
    if not page.heading:
        raise _unreadable("holds no raw page of ncu: no line with the columns ID and Kernel Name", source)
    if not launches:
        what = "holds the heading of ncu's raw page and no kernel"
        raise NotMeasuredError(what, where=source, code="counters-missing")
    return NcuReport(source, launches, tuple(line for line in page.log if line.startswith(("==WARN", "==ERR"))))


def cause_in(log: Sequence[str], source: str) -> NotMeasuredError | None:
    """Why nothing was counted, as ncu's own lines say it; ``None`` where they do not."""
    return _fault(log, _WITHOUT_ROWS, source)


def base_unit(unit: str) -> tuple[str, float]:
    """A unit of any version of ncu as base unit and the factor to it: ``usecond`` is ``("s", 1e-6)``.

    ``cycle/nsecond`` and ``Ghz`` are both Hz. A word that is not known stays as it is, with the factor 1.
    """
    words = unit.strip().split("/")
    if len(words) > 2:  # noqa: PLR2004 (something a second; ncu has no unit of three)
        return unit.strip(), 1.0
    parts = [_part(word) for word in words]
    name = "/".join(word for word, _ in parts)
    scale = parts[0][1] / math.prod(factor for _, factor in parts[1:])
    return ("Hz" if name == "cycle/s" else name), scale


def number(text: str) -> float | None:
    """A number as ncu prints it, with or without thousands separators; ``None`` where it is none.

    The values of its instances may follow a number, ``12 (4; 8)``; they are left out.
    """
    text = _without_instances(text)
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _without_instances(text: str) -> str:
    text = text.strip()
    opening, inside = _INSTANCES.get(text[-1:], ("", ""))
    if not opening:
        return text
    before, _, instances = text[:-1].rpartition(opening)
    return before.rstrip() if inside in instances else text


def _part(word: str) -> tuple[str, float]:
    match = _UNIT.fullmatch(word)
    return (_BASES[match[2]], _PREFIXES[match[1]]) if match else (word, 1.0)


def _fault(log: Sequence[str], causes: Sequence[tuple[str, str, str]], source: str) -> NotMeasuredError | None:
    for sign, code, meaning in causes:
        said = next((line for line in log if sign.lower() in line.lower()), None)
        if said is not None:
            return NotMeasuredError(f"{meaning}: {said}", where=source, code=code)
    return None


_HEADING = re.compile(r'"ID","|^ID,Process ID')


class _Page:
    """The reader's state: columns and units of the last heading, and the lines that are not part of the page."""

    def __init__(self, source: str) -> None:
        self.heading: list[str] = []
        self.units: list[str] = []
        self.log: list[str] = []
        self._source = source

    def read(self, lines: Sequence[str]) -> Iterator[KernelLaunch]:
        """Each launch; what is not a row is kept in ``log``.

        Raises:
            RecordError: The page is another one, or a row is not whole.
        """
        index = 0
        while index < len(lines):
            line, where, index = lines[index], f"{self._source}:{index + 1}", index + 1
            if _HEADING.search(line):
                self._head(line)
                continue
            start = self._row_start(line, last=index == len(lines))
            if start is None:
                self._other(line, where)
                continue
            self._other(line[:start], where)
            rest = line[start:]
            end = min(index + MAX_LINES, len(lines))
            while not self._whole(rest) and index < end and self._goes_on(lines[index]):
                rest, index = f"{rest}\n{lines[index]}", index + 1  # the name of a range may hold line ends
            row = self._row(rest, where)
            if row[self.heading.index("ID")]:
                yield self._launch(row, where)
            else:
                self.units = row

    def _row_start(self, line: str, *, last: bool = False) -> int | None:
        """Where a row begins in a line, behind what the program printed without a line end; ``None``: nowhere.

        In the last line the beginning of a number is one too: the file may be cut there.
        """
        if last and self.heading and re.fullmatch(r'"\d*"?,?', line):
            return 0
        match = re.match(r'"\d*","', line) or re.search(r'"\d+","\d+","', line) if self.heading else None
        return match.start() if match else None

    def _goes_on(self, line: str) -> bool:
        return not line.startswith("==") and not _HEADING.search(line) and self._row_start(line) is None

    def _whole(self, text: str) -> bool:
        return len(_cells(text) or ()) >= len(self.heading)

    def _row(self, text: str, where: str) -> list[str]:
        row = _cells(text)
        if row is None or len(row) != len(self.heading):
            fault = "its last quotation is open" if row is None else f"{len(row)} of {len(self.heading)} columns"
            what = f"the row is cut short: {fault}"
            raise RecordError(what, where=where, code="counters-unreadable")
        return row

    def _head(self, line: str) -> None:
        if line.startswith("ID,"):  # without quotes a row cannot be told from what the program prints
            raise _unreadable("has lost ncu's quotation marks: another program has saved it anew", self._source)
        cells = _cells(line[line.find('"ID"') :]) or []
        if "Metric Name" in cells and "Metric Value" in cells:
            what = "is ncu's details page, which has labels in place of names"
            raise RecordError(what, where=self._source, code="counters-unreadable")
        if "Kernel Name" not in cells:
            what = "the heading of the page is cut short"
            raise RecordError(what, where=self._source, code="counters-unreadable")
        self.heading, self.units = cells, []

    def _other(self, line: str, where: str) -> None:
        """A line of ncu's or the program's; one with as many quotations as a row is a row without its beginning."""
        if self.heading and line.count('","') > len(self.heading) // 2:
            self._row(line, where)
        if line.strip():
            self.log.append(line)

    def _launch(self, row: list[str], where: str) -> KernelLaunch:
        if not self.units:
            raise _unreadable("a kernel comes before the row of units, so its figures have none", where)
        cells = dict(zip(self.heading, row, strict=True))
        first = next((n for n, name in enumerate(self.heading) if "__" in name), len(row))
        metrics = [
            (name, value, unit)
            for name, unit, text in zip(self.heading[first:], self.units[first:], row[first:], strict=True)
            if (value := _value(name, unit, text, where)) is not None
        ]
        _ordinal("Process ID", cells.get("Process ID", ""), where)
        extra = (name for name in self.heading[:first] if name not in IDENTITY)
        gpu, sizes = cells.get(GPU_NAME, ""), {"grid": "Grid Size", "block": "Block Size"}
        return launch_of(
            cells["Kernel Name"],
            metrics,
            gpu="" if gpu.strip().lower() in _MISSING else gpu,
            architecture=_architecture(cells.get("CC", ""), where),
            number=_ordinal("ID", cells["ID"], where),
            device=_ordinal("Device", cells.get("Device", ""), where),
            ranges=tuple(shown for name in extra for shown in _ranges(name, cells[name])),
            **{what: _shape(what, cells[column], where) for what, column in sizes.items() if column in cells},
        )


def launch_of(
    name: str, metrics: Iterable[tuple[str, float, str]], *, gpu: str, architecture: int | None = None, **identity: Any
) -> KernelLaunch:
    """A launch of a file, its role by the shipped list.

    Args:
        name: The kernel's demangled name.
        metrics: Name, value and unit of each; what is not finite is left out.
        gpu: The GPU's name; empty where the file does not say.
        architecture: Compute capability times ten; by the device's attributes where the file does not say.
        identity: Further fields; sizes that are not among them are the launch's metrics, where these were collected.
    """
    (role,) = classify([name])
    values: dict[str, float] = {}
    units: dict[str, str] = {}
    for metric, value, unit in metrics:
        base, scale = base_unit(unit)
        if math.isfinite(value * scale):
            values[metric], units[metric] = value * scale, base
    for what in ("grid", "block"):
        names = [f"launch__{what}_dim_{axis}" for axis in "xyz"]
        identity.setdefault(what, tuple(int(values[metric]) for metric in names if metric in values))
    device = Device.of(values, gpu, architecture)
    return KernelLaunch(key=KernelKey(role=role, name=name), values=values, units=units, gpu=device, **identity)


def _value(name: str, unit: str, text: str, where: str) -> float | None:
    """A metric's cell as a number; ``None`` where there is no value, or a text without a unit.

    Raises:
        RecordError: It is not a number, or one whose dots part thousands.
    """
    if unit != "%" and _DOT_GROUPS.fullmatch(_without_instances(text)):
        what = f"{name} is {_SHOWN.repr(text)}, whose dots part thousands: ncu ran in another language"
        raise _unreadable(what, where)
    value = number(text)
    if value is None and unit and text.strip().lower() not in _MISSING:
        raise _unreadable(f"{name} is {_SHOWN.repr(text)}, no number", where)
    return value


def _ordinal(name: str, text: str, where: str) -> int:
    """A number that something goes by; 0 where the file does not say.

    Raises:
        RecordError: It is not a whole number.
    """
    if text.strip().lower() in _MISSING:
        return 0
    if not _ORDINAL.fullmatch(text):
        raise _unreadable(f"{name} is {_SHOWN.repr(text)}, expected a whole number", where)
    return int(text)


def _ranges(heading: str, text: str) -> Iterator[str]:
    """The names in an NVTX column; its heading says what colons part: a domain first, six words about payload last."""
    lead = 2 if heading.startswith("Id:") else 1
    for shown in re.findall(r'"([^"]*)"', text):
        parts = shown.split(":")
        yield ":".join(parts[lead:-6]) if len(parts) > lead + 6 else shown


def _cells(line: str) -> list[str] | None:
    """The fields of one record, all quoted as ncu does it; ``None`` where the last quotation is open or missing."""
    if not line.rstrip().endswith('"'):
        return None
    try:
        return next(csv.reader([line], strict=True), None)
    except csv.Error:
        return None


def _architecture(text: str, where: str) -> int | None:
    """Compute capability times ten, from its column; ``None`` in versions without one."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9])", text)
    if match is None:
        raise _unreadable(f"CC is {_SHOWN.repr(text)}, expected one like 9.0", where)
    return int(match[1]) * 10 + int(match[2])


def _shape(what: str, text: str, where: str) -> tuple[int, ...]:
    """Sizes in x, y, z."""
    sizes = re.findall(r"[0-9]+", text)
    if len(sizes) != 3 or not all(map(_ORDINAL.fullmatch, sizes)):  # noqa: PLR2004 (x, y, z)
        raise _unreadable(f"{what} size is {_SHOWN.repr(text)}, expected one like (1, 2, 3)", where)
    return tuple(map(int, sizes))


def _unreadable(text: str, where: str) -> RecordError:
    return RecordError(text, where=where, code="counters-unreadable")
