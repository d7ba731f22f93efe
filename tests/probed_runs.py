"""Trials of recorded runs on GPUs that jump: the steps of each iteration, and the probe's readings beside it."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from hand_made import iteration, trial

from perfgate.metrics.trial import Probes, Trial

FIXTURES = Path(__file__).parent / "fixtures"
PROBED = "h200-x8-probe.csv"


def probed(run_name: str, file: str = PROBED) -> list[Trial]:
    """Trials of a run, in order; TTFT and TPOT are those of the recording where it has them."""
    rows = defaultdict(list)
    for row in csv.DictReader((FIXTURES / file).read_text().splitlines()):
        if row["run"] == run_name:
            rows[int(row["trial"]), row["pair"], row["subject"]].append(row)
    return [
        trial(index, int(pair) if pair else None, "base" if side == "base" else "head", iterations=tuple(
            iteration(**_times(row), probe_ns=Probes((int(row["before_ns"]),), (int(row["after_ns"]),))) for row in own
        ))
        for (index, pair, side), own in sorted(rows.items())
    ]  # fmt: skip


def _times(row: dict[str, str]) -> dict[str, Any]:
    early, late, middle = (int(row.get(name, 0)) for name in ("early_ns", "late_ns", "median_ns"))
    # Decode steps with these medians of either half and, where it is known, of all, which lies between them.
    steps = {"itl_ns": (*[early] * 3, middle or early, middle or late, *[late] * 3)}
    if "tpot_ns" not in row:
        return steps
    ttft, tpot = int(row["ttft_ns"]), int(row["tpot_ns"])
    return steps | {"ttft_ns": (ttft,), "e2e_ns": (ttft + 127 * tpot,), "output_tokens": 128}
