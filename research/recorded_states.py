"""What recorded iterations show of two levels of step time: levels, jumps, and pairs with and without them.

``python research/recorded_states.py tests/fixtures/h200-x4-states.csv`` prints a Markdown table, a line a run and
side that has two levels in two trials or more. The file has a line an iteration: run, trial, pair, subject, iteration,
itl_ns. Levels are those of ``state_summary.py``, found in each side alone: a head may be slower than its base by more
than they are apart.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from state_summary import boundary

HEADINGS = (
    "run", "side", "trials", "slow, fast", "apart", "sd within", "slow iterations", "began slow",
    "jumps to fast, to slow", "pair sd, all", "pair sd, one level",
)  # fmt: skip


def jumps(slow: Sequence[bool]) -> tuple[int, int]:
    """How often the iterations of one trial turn fast, and slow."""
    turns = [(before, after) for before, after in pairwise(slow) if before != after]
    return turns.count((True, False)), turns.count((False, True))


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """The iterations with a column ``slow``; missing for a side with one level, or one trial."""
    frame = frame.assign(slow=pd.Series(pd.NA, index=frame.index, dtype="boolean"))
    for _, side in frame.groupby(["run", "subject"], sort=False):
        edge = boundary(side["itl_ns"].to_numpy(dtype=float))
        if edge is not None and side["trial"].min() < side["trial"].max():
            frame.loc[side.index, "slow"] = side["itl_ns"] > edge
    return frame


def pair_sds(run: pd.DataFrame) -> tuple[float, float]:
    """Percent sd of the log ratios of pairs: of whole trials, and about the mean of each level that both sides have.

    A pair with both levels on both sides counts with the one that has more of its iterations.
    """
    whole: list[float] = []
    within: dict[bool, list[float]] = {False: [], True: []}
    for _, pair in run[run["pair"].notna()].groupby("pair"):
        sides = [pair[pair["subject"] == side] for side in ("base", "head")]
        if not all(map(len, sides)):
            continue
        whole.append(_ratio(*sides))
        parts = {slow: [side[side["slow"].eq(slow).fillna(value=False)] for side in sides] for slow in within}
        slow = max(parts, key=lambda level: min(map(len, parts[level])))
        if all(map(len, parts[slow])):
            within[slow].append(_ratio(*parts[slow]))
    return _sd([whole]), _sd(list(within.values()))


def _ratio(base: pd.DataFrame, head: pd.DataFrame) -> float:
    return float(np.log(head["itl_ns"].median() / base["itl_ns"].median()))


def _sd(groups: Sequence[Sequence[float]]) -> float:
    """Percent, about the mean of each group; NaN where no group has two."""
    used = [np.asarray(group) for group in groups if len(group)]
    free = sum(len(group) - 1 for group in used)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in used)
    return 100 * float(np.sqrt(squares / free)) if free else float("nan")


def line(run: pd.DataFrame, side: str) -> str | None:
    """The table's line of one side; ``None`` where it has one level."""
    own = run[run["subject"] == side].sort_values(["trial", "iteration"])
    if own.empty or own["slow"].isna().any():
        return None
    flags = [trial["slow"].to_list() for _, trial in own.groupby("trial")]
    high, low = (own.loc[own["slow"] == slow, "itl_ns"] / 1e6 for slow in (True, False))
    spread = np.concatenate([np.log(level / level.median()) for level in (high, low)])
    turned = [jumps(trial) for trial in flags]
    sds = [f"{sd:.2f} %" if math.isfinite(sd) else "-" for sd in pair_sds(run)]
    cells = (
        str(run["run"].iloc[0]), side, len(flags), f"{high.median():.3f}, {low.median():.3f} ms",
        f"{100 * (high.median() / low.median() - 1):.2f} %", f"{100 * spread.std():.2f} %",
        f"{100 * own['slow'].mean():.0f} %", sum(trial[0] for trial in flags),
        f"{sum(t[0] for t in turned)}, {sum(t[1] for t in turned)}", *sds,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def totals(frame: pd.DataFrame) -> str:
    """A sentence on all trials with a state: where they began, how they jumped, and how the next engine began."""
    known = frame.dropna(subset=["slow"]).sort_values(["run", "trial", "iteration"], kind="stable")
    trials = {key: trial["slow"].to_list() for key, trial in known.groupby(["run", "trial"], sort=False)}
    turned = np.array([jumps(flags) for flags in trials.values()]).sum(axis=0)
    followers: dict[bool, list[bool]] = {True: [], False: []}
    for (earlier, before), (later, after) in pairwise(trials.items()):
        if earlier[0] == later[0]:
            followers[before[-1]].append(after[0])
    ends = [f"{sum(begun)} of {len(begun)} behind one that ended {name}"
            for name, begun in (("slow", followers[True]), ("fast", followers[False]))]  # fmt: skip
    return (
        f"{sum(flags[0] for flags in trials.values())} of {len(trials)} trials began slow ({', '.join(ends)}); within "
        f"trials {turned[0]} jumps to the fast level, {turned[1]} to the slow one."
    )


def table(file: Path) -> str:
    """Markdown of a recording."""
    frame = labelled(pd.read_csv(file))
    runs = [run for _, run in frame.groupby("run", sort=False)]
    lines = [line(run, side) for run in runs for side in ("base", "head")]
    found = [text for text in lines if text is not None]
    return "\n".join([f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|", *found, "", totals(frame)])


if __name__ == "__main__":
    print("\n\n".join(table(Path(name)) for name in sys.argv[1:]))
