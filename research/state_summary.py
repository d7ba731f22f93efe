"""What readings of ``research/gpu_states.py`` show: levels, jumps between them, and what each lead did.

A batch of replays counts as one reading, its median. Batches of one GPU are split in two where that leaves least
variance within; the parts are levels if they are six within-level standard deviations apart and each holds one batch in
fifty. A jump is a batch on another level than the two before it in the same process, where the next batch stays.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Hashable, Iterator
from contextlib import suppress
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

APART_SDS = 6.0
LEAST_SHARE = 0.02
PROBE_KERNELS = 300
"""Of one probe, see ``state_replay.py``."""
STEP_KERNELS = 419
TOGETHER_S = 1.0
"""Jumps of two GPUs this close in time count as one event of the host."""
AT_ONCE_S = 0.5
"""A jump this soon after a lead counts as its doing."""
TIMES = ("step_us", "probe_us", "again_us")
FIGURES = ("sm_mhz", "memory_mhz", "video_mhz", "power_w", "celsius", "pcie_generation", "pcie_tx_mb", "pcie_rx_mb")


def boundary(values: Floats) -> float | None:
    """The value halfway between two levels of positive values; ``None`` where there are not two."""
    x = np.sort(np.log(values))
    n = len(x)
    if n < 4:  # noqa: PLR2004 (two a level)
        return None
    below = np.arange(1, n)
    sums = np.cumsum(x)[:-1]
    between = (sums - below * x.mean()) ** 2 * n / (below * (n - below))
    cut = 1 + int(np.argmax(between))
    fast, slow = x[:cut], x[cut:]
    if min(len(fast), len(slow)) < max(2, LEAST_SHARE * n):
        return None
    middle = np.median(fast), np.median(slow)
    deviations = np.concatenate([np.abs(fast - middle[0]), np.abs(slow - middle[1])])
    sd = 1.4826 * float(np.median(deviations))
    return float(np.exp(sum(middle) / 2)) if middle[1] - middle[0] >= APART_SDS * sd else None


def read(folder: Path) -> pd.DataFrame:
    """All readings of a folder; of a file that was cut off, what can be read."""
    frames = []
    for file in sorted(folder.glob("readings-*.csv.gz")):
        lines: list[str] = []
        with gzip.open(file, "rt") as text, suppress(EOFError, zlib.error):
            lines.extend(line for line in text if line.endswith("\n"))
        if len(lines) > 1:
            frames.append(pd.read_csv(StringIO("".join(lines)), dtype={"gpu": str}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def batches(readings: pd.DataFrame) -> pd.DataFrame:
    """A row a batch: medians of its replays, the GPU's figures if it read them, and a column ``slow_*`` a time.

    ``slow_step_us`` and the like are true, false, or missing where a GPU shows one level only.
    """
    by = ["gpu", "process", "stretch", "lead", "batch"]
    figures = [name for name in FIGURES if name in readings]
    how = {"at_s": "min", **dict.fromkeys(TIMES, "median"), **dict.fromkeys(figures, "max")}
    table = readings.groupby(by, sort=False).agg(how).reset_index().sort_values(["gpu", "process", "batch"])
    for name in TIMES:
        slow = pd.Series(pd.NA, index=table.index, dtype="boolean")
        for _, own in table.groupby("gpu"):
            edge = boundary(own[name].to_numpy())
            if edge is not None:
                slow[own.index] = own[name] > edge
        table[f"slow_{name}"] = slow
    return table.reset_index(drop=True)


def jumps(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Jumps of the step: GPU, time, direction, the lead it came after and how many seconds after it."""
    found = []
    for _, own in table.groupby(["gpu", "process"], sort=False):
        if own["slow_step_us"].isna().any():
            continue
        slow = own["slow_step_us"].to_numpy(dtype=bool)
        begins = own.groupby("stretch")["at_s"].min()
        for n in range(1, len(own)):
            stays = n + 1 == len(own) or slow[n + 1] == slow[n]
            if slow[n] != slow[n - 1] and stays and (n == 1 or slow[n - 2] == slow[n - 1]):
                row = own.iloc[n]
                after_s = float(row["at_s"] - begins[row["stretch"]])
                found.append({
                    "gpu": row["gpu"], "process": int(row["process"]), "at_s": round(float(row["at_s"]), 2),
                    "to": "slow" if slow[n] else "fast", "lead": row["lead"], "after_s": round(after_s, 2),
                    "first": int(row["stretch"]) == 0,
                })  # fmt: skip
    return found


def of_gpu(gpu: Hashable, own: pd.DataFrame, jumped: list[dict[str, Any]]) -> dict[str, Any]:
    """What one GPU showed."""
    line: dict[str, Any] = {"gpu": gpu, "processes": own["process"].nunique(), "batches": len(own)}
    for name, kernels in zip(TIMES, (STEP_KERNELS, PROBE_KERNELS, PROBE_KERNELS), strict=True):
        slow = own[f"slow_{name}"]
        if slow.isna().any():
            line[name] = {"one level": round(float(own[name].median()), 1), "sd_percent": _sd_percent(own[name])}
            continue
        high, low = own.loc[slow, name], own.loc[~slow, name]
        gap_us = float(high.median() - low.median())
        line[name] = {
            "slow": round(float(high.median()), 1), "fast": round(float(low.median()), 1), "slow_share": _share(slow),
            "gap_ns_a_kernel": round(1e3 * gap_us / kernels), "sd_percent": [_sd_percent(high), _sd_percent(low)],
        }  # fmt: skip
    first = own.sort_values("batch").groupby("process").first()
    line["began_slow"] = [None if pd.isna(slow) else bool(slow) for slow in first["slow_step_us"]]
    for name in TIMES[1:]:
        known = own[["slow_step_us", f"slow_{name}"]].dropna()
        if len(known):
            line[f"agreement_{name}"] = _share(known["slow_step_us"] == known[f"slow_{name}"])
        correlation = float(own["step_us"].corr(own[name], method="spearman"))
        line[f"correlation_{name}"] = None if math.isnan(correlation) else round(correlation, 3)
    line["figures"] = {str(state): found for state, found in _figures(own)}
    line["jumps"] = [{key: jump[key] for key in ("at_s", "to", "lead", "after_s")} for jump in jumped]
    return line


def _figures(own: pd.DataFrame) -> Iterator[tuple[str, dict[str, float]]]:
    """Medians of the GPU's own figures on each level of the step, or of all where there is one level."""
    known = own[[name for name in FIGURES if name in own]]
    slow = own["slow_step_us"]
    parts = {"all": slow.isna(), "slow": slow.fillna(value=False), "fast": (~slow).fillna(value=False)}
    for state, chosen in parts.items():
        medians = known[chosen.to_numpy(dtype=bool)].median().dropna()
        if len(medians):
            yield state, {str(name): round(float(value), 1) for name, value in medians.items()}


def of_lead(lead: Hashable, table: pd.DataFrame, jumped: list[dict[str, Any]]) -> dict[str, Any]:
    """What came before and after one lead, over all GPUs.

    ``slow_before`` and ``slow_after`` are shares of stretches: those whose process was slow just before the lead, and
    just after it. ``at_once`` counts jumps within half a second of the lead, ``later`` those in the rest of its
    stretches.
    """
    own = table[table["lead"] == lead]
    stretches = own.groupby(["gpu", "process", "stretch"], sort=False)
    first = stretches.nth(0)
    earlier = table.groupby(["gpu", "process"], sort=False)[["stretch", "slow_step_us"]].shift()
    before = earlier.loc[first.index].dropna(subset=["stretch"])["slow_step_us"]
    mine = [jump for jump in jumped if jump["lead"] == lead]
    at_once = [jump for jump in mine if jump["after_s"] <= AT_ONCE_S and not jump["first"]]
    later = [jump for jump in mine if jump not in at_once]
    line: dict[str, Any] = {
        "lead": lead, "stretches": stretches.ngroups,
        "seconds": round(float((stretches["at_s"].max() - stretches["at_s"].min()).sum()), 1),
        "slow_before": _share(before), "slow_after": _share(first["slow_step_us"]),
        "slow_share": _share(own["slow_step_us"]),
    }  # fmt: skip
    for name, some in (("at_once", at_once), ("later", later)):
        line[name] = {way: sum(jump["to"] == way for jump in some) for way in ("fast", "slow")}
    return line | {name: round(float(own[name].median()), 1) for name in TIMES}


def together(jumped: list[dict[str, Any]]) -> dict[str, Any]:
    """How many jumps came within a second of one of another GPU: an event of the host moves several at once."""
    by_time = sorted(jumped, key=lambda jump: jump["at_s"])
    near = {
        number
        for (a, one), (b, two) in pairwise(enumerate(by_time))
        if one["gpu"] != two["gpu"] and two["at_s"] - one["at_s"] <= TOGETHER_S
        for number in (a, b)
    }
    return {"jumps": len(by_time), "to_fast": sum(j["to"] == "fast" for j in by_time), "near_another_gpus": len(near)}


def summary(folder: Path) -> list[dict[str, Any]]:
    """A line for all, a line a GPU, and a line a lead as they were first tried; none where nothing was timed."""
    readings = read(folder)
    if readings.empty:
        return []
    table = batches(readings)
    found = jumps(table)
    lines = [together(found)]
    lines += [of_gpu(gpu, own, [j for j in found if j["gpu"] == gpu]) for gpu, own in table.groupby("gpu")]
    return lines + [of_lead(lead, table, found) for lead in table.sort_values("at_s")["lead"].unique()]


def _share(flags: pd.Series) -> float | None:
    known = flags.dropna()
    return round(float(known.astype(float).mean()), 3) if len(known) else None


def _sd_percent(values: pd.Series) -> float:
    """Robust standard deviation, as a percentage of the median."""
    middle = float(values.median())
    return round(148.26 * float((values - middle).abs().median()) / middle, 3)
