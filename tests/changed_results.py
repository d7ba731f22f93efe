"""A result of another load driver with one field changed: are figures that are shown right, and is the rest said?"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from other_results import Sample, leaves, placed

from perfgate.errors import PerfgateError
from perfgate.imports.two_results import compare_results
from perfgate.judge.outcome import Outcome

JUNK: tuple[Any, ...] = (True, "12.5", -1.0, math.nan, math.inf, [], {}, None, ...)
"""What is no number; the last two are nothing at all."""

HELD_AGAINST = ("mean_itl_ms", "median_tpot_ms", "median")
"""Other figures are held against these, which are not shown themselves."""
EXACT = 0.05
"""By more than this no rounding moves a figure."""
DEFAULTS = (("burstiness", 1.0), ("sharegpt_output_len", None))
"""What a release means that does not write these."""


def compared(folder: Path, base: str, head: str) -> Outcome:
    """The outcome of two files with these texts."""
    files = folder / "base.json", folder / "head.json"
    for file, text in zip(files, (base, head), strict=True):
        file.write_text(text, encoding="utf-8")
    outcome = compare_results(*files)
    assert outcome is not None
    return outcome


def with_value(sample: Sample, path: str, value: Any) -> str:
    """The text of a sample with another value at a path, or without it where that is ``...``."""
    return Sample(sample.tool, placed(sample.documents, path, value), "", {}, "").text


def said(outcome: Outcome) -> str:
    """Every reason and caution."""
    cells = [note for cell in outcome.cells for note in (*cell.reasons, *cell.cautions)]
    return " | ".join(note.text for note in (*outcome.reasons, *cells))


def changes(sample: Sample, dice: random.Random) -> Iterator[tuple[str, Any]]:
    """Paths of a sample, each with another value, without end."""
    every = [*leaves(sample.documents)]
    while True:
        path, value = dice.choice(every)
        yield path, dice.choice(JUNK) if dice.random() < 0.5 else _other(value, dice)


def _other(value: Any, dice: random.Random) -> Any:
    if type(value) in (int, float):
        factor = dice.choice((0.25, 0.5, 0.9, 1.1, 2, 10))
        return value * factor + (value == 0) if type(value) is float else max(1, round(value * factor))
    if isinstance(value, str):
        return dice.choice((f"{value}x", "other", "inf"))
    return not value if isinstance(value, bool) else dice.choice((7, "x"))


def silently_wrong(sample: Sample, path: str, value: Any, folder: Path) -> str:
    """What is wrong in silence where the head is the sample with one field changed; empty where nothing is."""
    before = dict(leaves(sample.documents))[path]
    documents = placed(sample.documents, path, value)
    files = folder / "base.json", folder / "head.json"
    files[0].write_text(sample.text, encoding="utf-8")
    files[1].write_text(Sample(sample.tool, documents, "", {}, "").text, encoding="utf-8")
    try:
        outcome = compare_results(*files)
    except PerfgateError as error:
        decides = any(_is(pattern, path) for pattern in (sample.asked, sample.counted, *sample.measured, r".*\.unit"))
        return f"refused: {error}" if type(before) is type(value) and value not in JUNK and not decides else ""
    if outcome is None:
        return "not read"
    return _wrong_figure(sample, documents, outcome) or _unsaid(sample, path, (before, value), outcome)


def _is(pattern: str, path: str) -> bool:
    return re.fullmatch(pattern, path) is not None


def _measures(sample: Sample, path: str) -> str:
    return next((metric for pattern, (metric, _) in sample.measured.items() if _is(pattern, path)), "")


def _wrong_figure(sample: Sample, documents: tuple[Any, ...], outcome: Outcome) -> str:
    """Names a figure that is shown and not what the files say at one and the same place."""
    head = {path: value for path, _, value in sample.figures(documents)}
    right = [(metric, value, head[path]) for path, metric, value in sample.figures(sample.documents) if path in head]
    for cell in outcome.cells:
        if any("geometric mean" in note.text for note in cell.cautions):
            continue  # the change made a repeat of another run, and that is said
        for row in cell.ungated:
            if row.base is None or row.head is None:
                return f"{row.metric} has one side"
            shown = (row.base, row.head)
            if not any(row.metric == metric and _near(shown, both) for metric, *both in right):
                return f"{row.metric} is shown as {shown}"
            if row.change is None or not math.isclose(row.change, row.head / row.base - 1, abs_tol=1e-9):
                return f"{row.metric} is shown as a change of {row.change}"
    return ""


def _near(shown: tuple[float, float], right: list[float]) -> bool:
    return all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(shown, right, strict=True))


def _unsaid(sample: Sample, path: str, values: tuple[Any, Any], outcome: Outcome) -> str:
    """Whether a change that matters is said, and one that does not changes nothing."""
    before, value = values
    said = " ".join(note.text for cell in outcome.cells for note in (*cell.reasons, *cell.cautions))
    key = re.findall(r"[A-Za-z]\w*", path)[-1]
    metric = _measures(sample, path)
    refused = outcome.verdict == "not-comparable"
    if (verdict := _beside_others(sample, path, values, said)) is not None:
        return verdict
    if _is(sample.asked, path) and value != before:
        default = value is ... and (key, before) in DEFAULTS
        open_end = {"inf", math.inf} >= {before, value} if isinstance(value, (str, float)) else False
        named = key in said and (refused or value in (None, ..., [], {}))
        return (
            "" if named or default or open_end or (refused and "only in" in said) else f"asked otherwise, said: {said}"
        )
    if metric:
        number = type(value) in (int, float) and 0 <= value < math.inf
        if not number and value not in (None, ...):
            return "junk was read as a figure"
        rows = {row.metric for cell in outcome.cells for row in cell.ungated}
        name = _full(sample, path, metric)
        quantity = name.partition("_")[0].upper()
        hidden = name not in rows and len(outcome.cells) == 1
        return f"{name} is not shown, said: {said}" if hidden and name not in said and quantity not in said else ""
    if _is(sample.counted, path):
        counts = type(value) in (int, float) and type(before) in (int, float) and before > 0
        differs = counts and abs(value / before - 1) > 0.01
        return f"counted otherwise, said: {said}" if differs and not refused and key not in HELD_AGAINST else ""
    return f"a change that decides nothing: {said}" if refused else ""


def _beside_others(sample: Sample, path: str, values: tuple[Any, Any], said: str) -> str | None:
    """Whether a figure that does not follow from the rest of the file is said; nothing where that decides nothing."""
    before, value = values
    numbers = type(value) in (int, float) and type(before) in (int, float) and 0 < value < math.inf
    exact, named = _is(sample.exact, path), "contradicts itself" in said
    if exact and numbers and abs(value / before - 1) > EXACT and not named and "asked for otherwise" not in said:
        return f"does not follow from the rest of the file, said: {said}"
    return "" if named and (exact or _is(sample.bound, path)) else None


def _full(sample: Sample, path: str, metric: str) -> str:
    found = next(match for pattern in sample.measured if (match := re.fullmatch(pattern, path)))
    return found.expand(metric)
