"""Restarts recorded on an H200, as ``tests/fixtures/h200-*.csv`` keep them: by iteration or by trial."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfgate.record.csv_table import read_table

Floats = NDArray[np.float64]

SAME_TRIAL = 5e-4
"""Two recordings whose trials all agree within this are one run."""


@dataclass(frozen=True)
class Recording:
    """Restarts of one run on an H200: times of iterations, (trials, iterations), or one value a trial."""

    name: str
    base: Floats
    head: Floats

    @property
    def change(self) -> float:
        """Geometric mean of head over base, minus one."""
        return math.expm1(float((np.log(np.median(self.head, axis=1)) - np.log(np.median(self.base, axis=1))).mean()))


def recordings(folder: Path) -> list[Recording]:
    """Every run in ``h200-*.csv``; one that is there both by iteration and by trial counts once."""
    found: list[Recording] = []
    for file in sorted(folder.glob("h200-*.csv"), key=lambda f: ("iteration" not in f.name, f.name)):
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        new = iterations_of(rows) if "iteration" in rows[0] else [trials_of(file)]
        found += [one for one in new if not any(same_run(one, other) for other in found)]
    return found


def iterations_of(rows: Sequence[dict[str, str]]) -> list[Recording]:
    """Runs of a file with a line an iteration: their whole pairs; conditioning trials have none."""
    runs: dict[str, dict[int, dict[str, list[float]]]] = {}
    for row in rows:
        if row["pair"]:
            pair = runs.setdefault(row["run"], {}).setdefault(int(float(row["pair"])), {"base": [], "head": []})
            pair[row["subject"]].append(float(row["itl_ns"]) * 1e-9)
    found = []
    for name, pairs in runs.items():
        whole = [pairs[n] for n in sorted(pairs) if len(pairs[n]["base"]) == len(pairs[n]["head"])]
        found.append(Recording(name, *(np.array([pair[role] for pair in whole]) for role in ("base", "head"))))
    return found


def trials_of(file: Path) -> Recording:
    """A run of which one value a trial is kept."""
    values = read_table(file).metrics["itl_median"]
    name = file.stem.removeprefix("h200-llama-8b-").replace("-", " ")
    return Recording(name, np.array(values.base)[:, None], np.array(values.head)[:, None])


def same_run(one: Recording, other: Recording) -> bool:
    """Whether two recordings agree in every trial; the median of iterations and that of all steps differ a little."""
    if one.base.shape[0] != other.base.shape[0]:
        return False
    return all(
        np.allclose(np.median(a, axis=1), np.median(b, axis=1), rtol=SAME_TRIAL, atol=0)
        for a, b in ((one.base, other.base), (one.head, other.head))
    )
