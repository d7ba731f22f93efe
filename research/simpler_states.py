"""What parts of the rule within states are worth: ``python research/simpler_states.py`` takes it without one of them.

Of runs whose head is slower by ``must_catch`` it says the share that is blocked, with the part and without it. Six
minutes on one core.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
from state_places import JUMPING, WIDE, Place
from state_runs import OneRun, decide_all

from perfgate.judge import state_series
from perfgate.judge.machine_states import Found, Source
from perfgate.stats.sequential import REGRESSED

RUNS = 4_000
BATCH = 1_000
PARTS: dict[str, Source] = {"labels by step times": "steps", "both states beside two states": "probe"}
"""Each with what tells the states where it counts."""


def blocked(without: bool, part: str, runs: int = RUNS) -> float:  # noqa: FBT001 (one of two)
    """The share of runs on a machine that jumps as recorded that one gate blocks."""
    place = Place("power", JUMPING, PARTS[part], WIDE, (WIDE.must_catch, 0.0))
    rng = np.random.default_rng(place.seed)
    rows = state_series._rows  # noqa: SLF001 (the part that is taken out)

    def states_alone(found: Found) -> list[str]:
        every = rows(found)
        return [row for row in every if row != state_series.BOTH] or [*every]

    absent: Any = {
        "labels by step times": mock.patch.object(OneRun, "at", return_value=None),
        "both states beside two states": mock.patch.object(state_series, "_rows", states_alone),
    }[part]
    with absent if without else nullcontext():
        ends = [decide_all(place.measure(rng, min(BATCH, runs)), 1) for _ in range(0, runs, BATCH)]
    return float(np.mean([(end.runs == REGRESSED).mean() for end in ends]))


def main() -> None:
    """Say it for each part."""
    for part, source in PARTS.items():
        whole, less = (blocked(without, part) for without in (False, True))
        print(f"{part} (told by {source}): {whole:.1%} blocked, without {less:.1%}", flush=True)


if __name__ == "__main__":
    main()
