"""Kernels of a run's traced steps: their times, what ncu counted of them, and the traces that show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import quote

from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import CellOutcome
from perfgate.kernels.outcomes import CounterRow
from perfgate.metrics.sides import SIDES
from perfgate.report.document import Section
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.difference import difference
from perfgate.trace.families import short_name
from perfgate.units import format_si, plural

HEADINGS = ("kernel", "role", "launches", "base us", "head us", "difference us")
COUNTED = ("DRAM bytes", "bound")
MOST_ROWS = 20
"""Kernels with a row of their own, those whose time changed most."""

Kernel = tuple[str, str, str]
"""Role, place and own name: what traces and counters both know."""
Figures = dict[Kernel, tuple[float, float]]
"""Launches and microseconds a step."""


def kernels_section(evidence: Evidence, cell: CellOutcome) -> Section | None:
    """A row a kernel with its times, and its counters where these were read; then the traces that show it."""
    sides = {side: _figures([t.decode for t in own if t.decode]) for side, own in evidence.trials("traced").items()}
    kernels = {
        kernel: tuple(sides[side].get(kernel, (0.0, 0.0)) for side in SIDES) for own in sides.values() for kernel in own
    }
    ranked = sorted(kernels.items(), key=lambda one: -abs(one[1][1][1] - one[1][0][1]))
    counted = {(row.role, row.place, row.kernel): row for row in cell.counters.rows} if cell.counters else {}
    rows = [(*HEADINGS, *(COUNTED if counted else ()))]
    for kernel, (base, head) in ranked[:MOST_ROWS]:
        role, place, name = kernel
        launches = " to ".join(dict.fromkeys(f"{often:.3g}" for often, _ in (base, head)))
        row = (name, f"{role} ({place})" if place else role, launches, f"{base[1]:.1f}", f"{head[1]:.1f}",
               f"{head[1] - base[1]:+.1f}")  # fmt: skip
        rows.append((*row, *_counters(counted.get(kernel))) if counted else row)
    lines = (
        [f"and {plural(len(ranked) - MOST_ROWS, 'kernel')} more that changed less"] if len(ranked) > MOST_ROWS else []
    )
    links = dict(_links(evidence))
    if not ranked and not links:
        return None
    return Section(
        lead="kernels with their counters and traces",
        rows=rows if ranked else (),
        lines=(*lines, *links),
        hrefs=(*("" for _ in lines), *links.values()),
        style="items",
        folded=True,
    )


def envelope_section(evidence: Evidence) -> Section | None:
    """What the head's step runs otherwise than the base's, line by line."""
    for base, head in evidence.pairs("traced"):
        if base.decode and head.decode and base.decode.patterns and head.decode.patterns:
            found = difference(base.decode, head.decode)
            lines = (found.headline, *found.lines)
            return Section(lead="kernels of a step, base to head", lines=lines, style="items", folded=True)
    return None


def _figures(trials: list[DecodeSteps]) -> Figures:
    """Means of a step over all trials; kernels that only template arguments tell apart are one."""
    sums: dict[Kernel, list[float]] = defaultdict(lambda: [0.0, 0.0])
    steps = sum(trial.steps for trial in trials)
    for trial in trials:
        for key, often, ns in zip(trial.keys, trial.key_launches, trial.key_ns, strict=True):
            own = sums[key.role, key.place, short_name(key.name)]
            own[0] += often / steps
            own[1] += ns / steps / 1e3
    return {kernel: (launches, us) for kernel, (launches, us) in sums.items()}


def _counters(row: CounterRow | None) -> tuple[str, str]:
    if row is None:
        return "not counted", "-"
    moved = [format_si(own["dram_bytes"], "B", ".4g") for own in (row.base, row.head) if "dram_bytes" in own]
    return " to ".join(dict.fromkeys(moved)) or "-", " to ".join(dict.fromkeys(row.bound.values())) or "-"


def _links(evidence: Evidence) -> Mapping[str, str]:
    """Each trace of the run in words, and its place beside a page in the run's folder."""
    kept = [(trial, artifact.path) for trial in evidence.record.trials for artifact in trial.traces]
    return {
        f"trial {trial.index}, {trial.subject}: {path}, {_opener(path)}": f"./{quote(path, errors='replace')}"
        for trial, path in kept
    }


def _opener(path: str) -> str:
    """What shows a profiler's file."""
    tool = "nsys-ui" if PurePosixPath(path).suffix == ".nsys-rep" else "ui.perfetto.dev"
    return f"open in {tool} and search for the kernel's name"
