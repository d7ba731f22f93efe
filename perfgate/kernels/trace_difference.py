"""Two traces beside each other: where the difference of their steps comes from, and which kernels differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfgate.errors import UsageError
from perfgate.kernels.answer import Answer, Table, count, difference_of, share, time, word
from perfgate.kernels.causes import attribution_sentence
from perfgate.metrics.sides import SIDES, Side
from perfgate.models import Note
from perfgate.trace.attribution import SHARED, Attribution, attribute
from perfgate.trace.decode_step import DecodeSteps, KernelKey, summarise_steps
from perfgate.trace.difference import difference
from perfgate.trace.families import short_name
from perfgate.trace.selection import Selection
from perfgate.units import NS_PER_S, plural

_PARTS = (
    word("part", "step"), word("kind"), time("base", "base"), time("head", "head"),
    difference_of("difference", "difference"), share("share", "share"), count("base_launches", "base launches"),
    count("head_launches", "head launches"),
)  # fmt: skip
_KERNELS = (
    word("role", "role"), count("base_launches", "base launches"), count("head_launches", "head launches"),
    time("base", "base"), time("head", "head"), difference_of("difference", "difference"), word("place", "place"),
    word("kernel", "kernel"), word("normalised"),
)  # fmt: skip
_CHANGES = (word("change", "difference of the most frequent steps"),)


def difference_answer(sides: Mapping[Side, tuple[str, Selection]]) -> Answer:
    """The step of one trace beside that of another: the parts of the difference, the kernels, and what changed in them.

    Args:
        sides: The name of each side's file, and what is compared of it.

    Raises:
        UsageError: One of them shows no step.
    """
    base, head = (_steps(*sides[side]) for side in SIDES)
    change, changes = attribute([(base, head)]), difference(base, head)
    headings = [
        f"{side}: {name}, {selection.what} ({selection.trace.source})" for side, (name, selection) in sides.items()
    ]
    headings.append(f"{changes.headline[0].upper()}{changes.headline[1:]}.")
    notes = list(dict.fromkeys(note for _, selection in sides.values() for note in selection.trace.cautions))
    ranks = [len(sides[side][1].ranks) for side in SIDES]
    if ranks[0] != ranks[1]:
        text = (
            f"the base has {plural(ranks[0], 'rank')} and the head {ranks[1]}: a step is the mean of all ranks' steps"
        )
        notes.append(Note(code="trace-damaged", text=text))
    if change is None:
        text = "no step has a successor in its trace, so that the length of a step is not known: kernels are compared"
        notes.append(Note(code="not-recorded", text=text))
    else:
        headings.append(attribution_sentence(change))
    tables = [
        Table("parts", "Mean of a step, the middle half by length", _PARTS, _part_rows(change)),
        Table("kernels", "Kernels, mean of a step", _KERNELS, _kernel_rows(base, head)),
        Table("changes", "Kernels that differ", _CHANGES, [(line,) for line in changes.lines]),
    ]
    about: dict[str, Any] = {
        side: {
            "source": selection.trace.source,
            "selection": selection.what,
            "ranks": len(selection.ranks),
            "steps": len(selection.figures),
        }
        for side, (_, selection) in sides.items()
    }
    return Answer(headings, about, tables, notes)


def _steps(name: str, selection: Selection) -> DecodeSteps:
    if not len(selection.figures):
        raise UsageError(f"{name} shows no step that ran a kernel, and --diff compares steps")
    return summarise_steps(selection.trace, selection.figures)


def _part_rows(change: Attribution | None) -> list[tuple[Any, ...]]:
    """The parts that differ or take time, then the step, whose difference they add up to."""
    if change is None:
        return []
    rows = [
        (part.name, part.kind, *_ns(part.base_s, part.head_s, part.difference_s, change), part.base_launches,
         part.head_launches)
        for part in change.parts
        if part.base_s or part.head_s
    ]  # fmt: skip
    return [*rows, ("step", "step", *_ns(change.base_s, change.head_s, change.difference_s, change), None, None)]


def _ns(base_s: float, head_s: float, difference_s: float, change: Attribution) -> Sequence[float | None]:
    of_all = difference_s / change.difference_s if abs(change.difference_s) >= SHARED * change.base_s else None
    return (base_s * NS_PER_S, head_s * NS_PER_S, difference_s * NS_PER_S, of_all)


def _kernel_rows(base: DecodeSteps, head: DecodeSteps) -> list[tuple[Any, ...]]:
    """Each kernel of either side, the largest difference first."""
    sides = [_of_a_step(steps) for steps in (base, head)]
    rows = []
    for key in {**sides[0], **sides[1]}:
        (base_launches, base_ns), (head_launches, head_ns) = (side.get(key, (0.0, 0.0)) for side in sides)
        figures = (base_launches, head_launches, base_ns, head_ns, head_ns - base_ns)
        rows.append((key.role, *figures, key.place, short_name(key.name), key.name))
    return sorted(rows, key=lambda row: (-abs(row[5]), row[0], row[-1]))


def _of_a_step(steps: DecodeSteps) -> dict[KernelKey, tuple[float, float]]:
    """Launches and time of each kernel in a step, as means over all of them."""
    columns = zip(steps.keys, steps.key_launches, steps.key_ns, strict=True)
    return {key: (launches / steps.steps, time_ns / steps.steps) for key, launches, time_ns in columns}
