"""The page of other tools' words names columns, counters, readings and options that exist."""

from __future__ import annotations

import re
from pathlib import Path

from perfgate import rooms
from perfgate.counters.launch_table import COUNTERS
from perfgate.kernels.commands import kernels
from perfgate.kernels.kernel_report import FIGURES
from perfgate.machine.telemetry import GpuTelemetry
from perfgate.metrics.catalogue import METRICS
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.idle_gaps import GAPS

ROOT = Path(__file__).parents[2]


def known_words() -> set[str]:
    """Titles of figures, counters, telemetry, metrics, options of ``kernels``, and quoted titles of report columns."""
    words = {title for title, *_ in FIGURES} | {f"idle: {gap}" for gap in GAPS} | {f"copies {k}" for k in COPY_KINDS}
    words |= {*COUNTERS, *GpuTelemetry.model_fields, *METRICS, "telemetry"}
    words |= {option for parameter in kernels.params for option in parameter.opts}
    for module in ("kernel_report", "trace_answers", "ranks_answer"):
        words |= set(re.findall(r'"([a-z][\w ]*)"', (ROOT / "perfgate/kernels" / f"{module}.py").read_text()))
    return words


def test_the_last_column_names_what_there_is() -> None:
    """What a reader is sent to exists under that name; of an option with values, its own name does."""
    rows = re.findall(r"^\|.*\| *(.+?) *\|$", (ROOT / "docs/other-tools.md").read_text(), re.MULTILINE)
    named = {word for row in rows for quoted in re.findall(r"`([^`]+)`", row) for word in options_of(quoted)}
    commands = {f"perfgate {name}" for name in rooms.entries("commands")}
    assert len(named) > 50
    assert sorted(named - known_words() - commands) == []


def options_of(quoted: str) -> list[str]:
    """``--step N --layer L`` names two options; other words are themselves."""
    return re.findall(r"--[\w-]+", quoted) or [quoted]
