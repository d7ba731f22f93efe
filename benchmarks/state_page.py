"""The section of docs/error-rates.txt that ``benchmarks/state_rates.py`` writes, from its counted rows."""

from __future__ import annotations

from collections.abc import Sequence

from state_models import StateModel
from state_places import PERCENT_GAP, SEED, TIGHT, WIDE, Row

from perfgate.judge.machine_states import Source

TITLE = "## Within states of the machine\n"
HEAD = """
Written by `benchmarks/state_rates.py` (seed {seed}); {runs:,} simulated runs a row. On some hosts a GPU jumps between
two states, of which decode steps in the slow one take 3.3 % more. Gates are then compared in each state that both sides
have and in the mean of both, and the slow state's share is a gate of its own. States are told by the step times
themselves or by a probe. The machines simulated are not made to fit the rule: iterations spread by 0.1 %, marks by
another 0.05 %, restarts by 0.11 %, so that pairs spread by 0.16 % within a state; orders are as the plan draws them.
Gates are correlated by one half; look by look, with the default looks, a run ends when all is decided.

Labels were made by the project's own functions; the tests are a vectorised copy, and {compared:,} runs of all rows
were also decided by `perfgate.judge.state_series` and `perfgate.judge.rule`: {differing} ended differently.
**{verdict}** The bounds "at most" of all rows hold together with 99 %.

| machine | what it is |
|---|---|
"""
TITLES = {
    WIDE: "### Declared rates, margins 0.1 % and 0.5 %\n",
    TIGHT: "### Declared rates, margins 0.02 % and 0.15 %\n",
}
COLUMNS = {
    "claims": ("machine", "told by", "gates", "unchanged: blocked", "inconclusive", "pairs", "at `ignorable`: blocked",
               "at most", "inconclusive", "pairs", "one gate at `must_catch`: passed", "at most", "blocked", "pairs",
               "claim"),
    "caused": ("slow state", "told by", "gates", "costs the head", "blocked", "of these by the share",
               "passed as it is", "passed within states", "said too low a bound", "inconclusive", "pairs"),
    "effects": ("machine", "told by", "gates", "head slower by", "blocked", "passed", "inconclusive", "pairs"),
    "power": ("machine", "told by", "gates", "head slower by", "blocked", "passed", "inconclusive", "pairs"),
}  # fmt: skip


def heading(part: str) -> str:
    """The first two lines of a table."""
    return f"\n| {' | '.join(COLUMNS[part])} |\n|{'---|' * len(COLUMNS[part])}\n"


def section(rows: Sequence[Row], compared: int, differing: int, moderated: str, of_pairs: str = "") -> str:
    """The section of the page."""
    claimed = [row for row in rows if row.place.part == "claims"]
    made = [row for row in claimed if row.place.case != "no change" and row.place.model.claims]
    shown, refuted = sum(standing([row]) == "shown" for row in made), [row for row in made if row.least > row.declared]
    verdict = f"{shown} of {len(made)} claims are shown, {len(refuted)} are refuted."
    parts = [TITLE, HEAD.format(seed=SEED, runs=rows[0].runs, compared=compared, differing=differing or "none",
                                verdict=verdict)]  # fmt: skip
    every = dict.fromkeys((row.place.model.name, row.place.model.about) for row in claimed)
    parts += [f"| {name} | {about} |\n" for name, about in every]
    for margins, title in TITLES.items():
        own = [row for row in claimed if row.place.margins == margins]
        keys = dict.fromkeys((row.place.model, row.place.source, row.gates) for row in own)
        parts += ["\n", title, heading("claims")]
        parts += [_line(claim_cells([row for row in own if _key(row) == key])) for key in keys]
    parts += [CLAIMED_WORDS, of_pairs]
    for part, words in (("caused", CAUSED_WORDS), ("effects", EFFECTS_WORDS), ("power", POWER_WORDS)):
        own = [row for row in rows if row.place.part == part]
        parts += [words, heading(part), *(_line(cells(row)) for row in own)]
    return "".join([*parts, moderated])


PAIRS_WORDS = """
### Pairs of a shape of their own

Restarts of both sides are alike above, or the base's are normal. Where the base repeats exactly, a pair's log ratio has
the shape of the head's restarts. One state, one gate, margins 0.1 % and 0.5 %; each rate is that at the worst of the
spreads 0.16, 0.3, 0.6 and 1.2 % (t: of that scale), {runs:,} runs each, "at most" with 95 %. Tails that are alike on
both sides cost decisions and keep both rates, and so do two levels that are equally frequent: all of six pairs lie on
one of them in 1/64 of runs, of eight in 1/256. That is why no usual look passes below six pairs or blocks below eight.
Looks that a scenario declares at 4, 6, 8 and 12 pairs are two pairs sooner on a quiet machine; on two levels they block
2.0 % and pass 7.6 %. **Rarer levels and one long tail of the head alone break the rates**, by as much as shown.
No rule of twelve pairs keeps them: pairs that hold nothing of the tail do not tell of it, and no test of a mean holds
for every shape (Bahadur and Savage 1956). Where both levels are seen the caution `times-uneven` says so. With n pairs
of which none is slow, up to 1 - 0.05^(1/n) of all restarts may be slow: 39 % with six pairs, 22 % with twelve.

| pairs | at `ignorable`: blocked | at most | inconclusive | at `must_catch`: passed | at most | inconclusive | claim |
|---|---|---|---|---|---|---|---|
"""
CLAIMED_WORDS = """
- Neither rate is exceeded on any machine for which it is claimed. Labels wrong in 5 % of the iterations, jumps, skew
  and outliers cost decisions and not validity: all of these are alike on both sides.
- Restarts of any shape that both sides share keep both rates; what a shape of the head's alone does is below. So do
  states that spread unevenly: a state passes by its own pairs and their spread. Of a state that fewer than three
  pairs have in common nothing is said, and a run that passes names the other one.
- States cost power. Each must pass by itself, and the rarer one has few pairs, so unchanged builds often end
  inconclusive. Blocking does not suffer as much, because the mean over both states has the pairs of either.
- No claim is made for subjects that differ, as two compilations of one build may, where no gate says by how much.
  Restarts of one visit repeat neither draw, so no number of pairs averages them out: draws of 0.02 % a side break the
  tight margins, 0.05 % the wide ones. Declared as `draw_sd` their variance is in every error, and the rates are kept;
  little is then decided where a margin is not several draws wide.
"""
CAUSED_WORDS = """
### A head that causes the slow state

No claim is made here: a head that is slow in some of its restarts passes more often than `must_catch` promises, since
twelve pairs show a share only roughly. The report of every run that passes within states says what the share could
still cost ("at most", 95 %, caution `two-states`); the column "said too low a bound" counts those where that is
less than the head does lose. A head that is always slow, or slow in a part of every trial, never passes.
"""
EFFECTS_WORDS = """
### A head that is slower by three times the gap, the gap, half of it, or a tenth

All gates of the head are slower; margins 0.1 % and 0.5 %. The declared rate for the first three is that at most 5 %
pass; a tenth of the gap is between the margins, where either verdict is right. What is slower by more than the states
are apart is blocked at the first look that may block, at eight pairs, whether these have a state in common or not.
"""
POWER_WORDS = """
### What tight margins catch

Margins 0.02 % and 0.15 %, restarts spread by 0.055 %, so that pairs within a state spread by 0.10 %.
"""


def _line(own: Sequence[str]) -> str:
    return f"| {' | '.join(own)} |\n"


def _key(row: Row) -> tuple[StateModel, Source, int]:
    return row.place.model, row.place.source, row.gates


def claim_cells(rows: Sequence[Row]) -> list[str]:
    """The cases of a model side by side."""
    *unchanged, ignorable, must_catch = rows
    first = [own for row in unchanged for own in (row.share(row.blocked), row.undecided, row.mean_pairs)]
    return [
        ignorable.place.model.name, ignorable.place.source, str(ignorable.gates), *(first or ["-"] * 3),
        ignorable.share(ignorable.blocked), f"{ignorable.most * 100:.2f} %", ignorable.undecided,
        ignorable.mean_pairs, must_catch.share(must_catch.first_passed), f"{must_catch.most * 100:.2f} %",
        must_catch.share(must_catch.blocked), must_catch.mean_pairs, standing(rows[-2:]),
    ]  # fmt: skip


def standing(rows: Sequence[Row]) -> str:
    """What the simulation says of the claims."""
    if not rows[0].place.model.claims:
        return "none made"
    if any(row.least > row.declared for row in rows):
        return "**refuted**"
    return "shown" if all(row.most <= row.declared for row in rows) else "not refuted"


def cells(row: Row) -> list[str]:
    """A row of the other tables."""
    place, mean = row.place, row.mean_pairs
    first = [place.model.name.removesuffix(", quiet"), place.source, str(row.gates)]
    if place.part == "caused":
        counts = (row.blocked, row.by_share, row.passed - row.passed_within, row.passed_within, row.too_low)
        cost = f"{place.model.slower * PERCENT_GAP * 100:.2f} %"
        return [*first, cost, *map(row.share, counts), row.undecided, mean]
    return [*first, f"{place.slow[0] * 100:.2f} %", *map(row.share, (row.blocked, row.passed)), row.undecided, mean]
