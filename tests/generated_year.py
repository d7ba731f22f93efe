"""A year of nights that never were: two changes and a drift of the build, on a machine that gets slower itself.

Everything is drawn from a seed, so pages made of it can be compared.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from hand_made import BASE, HEAD, STEP_S, gate, trial
from stored import measured

from perfgate.baseline.lineage import Baseline, Entry, draft
from perfgate.baseline.store import baseline_path
from perfgate.machine.fingerprint import Gpu, Machine
from perfgate.record.run_record import Record, Visit
from perfgate.scenario.plan import Cell

BEGUN = datetime(2025, 11, 23, 2, tzinfo=UTC)
NIGHTS = 365
NIGHT_SD, PAIR_SD = 0.0007, 0.0006
SLOWER, FASTER, DRIFTED = 0.0031, -0.0052, 0.0060
"""Two changes and what the drift loses, as log ratios: on the nights below."""
SLOWER_AT, DRIFT_FROM, DRIFT_TO, FASTER_AT = 95, 160, 260, 315
MACHINE_LOSES = 0.012
"""In the year, of the anchor and of the build alike."""
PAIRS = 6
GATES = [gate("itl_median", "0.1%", "0.5%"), gate("ttft_median", "1%", "5%")]
CARDS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")


def the_cell() -> Cell:
    """What is measured."""
    return measured("llama-8b-decode", GATES)


def level(night: int) -> float:
    """How far the build of a night is from the anchor, as a log ratio."""
    drifted = min(max((night - DRIFT_FROM) / (DRIFT_TO - DRIFT_FROM), 0.0), 1.0)
    return 0.004 + SLOWER * (night >= SLOWER_AT) + DRIFTED * drifted + FASTER * (night >= FASTER_AT)


def a_night(night: int, rng: np.random.Generator) -> Record:
    """Pairs of an anchor and of that night's build."""
    machine = STEP_S * math.exp(MACHINE_LOSES * night / NIGHTS + rng.normal(0, 0.001))
    own = level(night) + rng.normal(0, NIGHT_SD)
    taken = []
    for pair in range(PAIRS):
        anchor = machine * math.exp(rng.normal(0, PAIR_SD / 2))
        head = machine * math.exp(own + rng.normal(0, PAIR_SD))
        taken.append(trial(2 * pair, pair, "base", anchor, versions={"vllm": "0.25.1"}))
        taken.append(trial(2 * pair + 1, pair, "head", head, versions={"vllm": f"0.26.0.dev{night + 1}"}))
    gpu = Gpu(uuid=CARDS[night % 9 == 4], name="NVIDIA H200", memory_bytes=150_000_000_000)
    where = Machine(architecture="x86_64", cpu="Test CPU", cores=16, gpus=(gpu,), driver="580.1")
    begun = BEGUN + timedelta(days=night, minutes=int(rng.integers(0, 40)))
    visit = Visit(machine=where, t0_utc=begun.isoformat())
    return Record(cell=the_cell(), subjects={"base": BASE, "head": HEAD}, seed=1, visits=(visit,), trials=tuple(taken))


def heads(nights: int = NIGHTS, seed: int = 20261122) -> Baseline:
    """The lineage of a head that is promoted every night; each is another build and begins anew."""
    rng = np.random.default_rng(seed)
    entries: list[Entry] = []
    for night in range(nights):
        record = a_night(night, rng)
        if rng.random() < 0.04:
            continue
        signed: dict[str, Any] = {"kind": "changed" if entries else "first", "author": "perfgate nightly",
                                  "reason": "nightly", "time_utc": record.visits[0].t0_utc,
                                  "parent": entries[-1].digest if entries else ""}  # fmt: skip
        entries.append(draft(record, "head", "salt", anchored=True).model_copy(update=signed).sealed())
    return Baseline(entries=tuple(entries))


def write_year(folder: Path, nights: int = NIGHTS) -> Path:
    """The year as a folder of baselines; the file."""
    lineage = heads(nights)
    file = folder / baseline_path(lineage_cell := the_cell(), lineage.machine_class)
    assert lineage_cell.name == lineage.cell.name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lineage.text, encoding="utf-8")
    return file
