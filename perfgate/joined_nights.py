"""Nights of several machines: what they measured of one plan becomes one night; and what is left of a plan.

A machine that could not measure costs the cells that it did not come to. These are measured again by another one, the
reference too, since that says whether the head's difference may be that machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.joining import MeasuredPart, agreed_in, join
from perfgate.machine.versioned_json import write_model
from perfgate.nightly import HALVES, HEAD, MANIFEST, REFERENCE, night_in, read_night, run_of
from perfgate.record.run_names import RUN
from perfgate.record.run_record import read_run
from perfgate.record.shards import ShardPlan, ShardsLeft


def join_nights(folders: Sequence[Path], runs: Path, plan: ShardPlan) -> Path:
    """Make one night of those that several machines measured of one plan; the visits beside an anchor stay with them.

    Args:
        folders: Folders of nights, or that hold one each.
        runs: Where the night's folder is made, by the plan's name.
        plan: As it was printed.

    Raises:
        NotMeasuredError: There is no night, or of none of them a first half.
        PerfgateError: See :func:`perfgate.joining.join`.
    """
    found = [night for folder in folders if (night := night_in(folder)) is not None]
    if not found:
        raise NotMeasuredError("no night was given", code="shard-missing")
    folder = runs / plan.run
    first = read_night(found[0]).model_copy(update={"name": plan.run, "shard": None})
    if folder.exists() and not (folder / MANIFEST).exists():
        raise UsageError("holds another run than these nights make", where=str(folder), remedy="Name another --runs.")
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / MANIFEST, first)
    held = [night for night in found if run_of(night, REFERENCE) is not None]  # what no reference vouches for is none
    for number, half in enumerate(HALVES):
        (folder / half).mkdir(exist_ok=True)
        begun = [run for night in held if (run := run_of(night, half)) is not None]
        if begun or half == REFERENCE:
            join(begun, folder / half, agreed_in(plan, number), first.sides(half), _given_up)
    return folder


def nights_joined(folder: Path, given: Sequence[Path]) -> list[Path]:
    """Those of the nights given that a joined night was made of, and no other.

    Raises:
        RecordError: The folder is not a joined night.
    """
    joined = [run_of(folder, half) for half in HALVES]
    parts = [part for run in joined if run is not None and (part := read_run(run).part) is not None]
    whole = {(part.shards, number) for part in parts for number in part.numbers}
    return [night for night in filter(None, map(night_in, given)) if _place(night) in whole]


def _place(night: Path) -> tuple[tuple[tuple[str, ...], ...], int] | None:
    begun = run_of(night, REFERENCE)
    part = read_run(begun).part if begun is not None else None
    return (part.shards, part.numbers[0]) if part is not None else None


def shards_left(plan: ShardPlan, folders: Iterable[Path]) -> ShardsLeft:
    """The shards of a plan of which something can be measured anew on another machine, with those cells alone.

    Nothing is that was decided, or could have been; see :meth:`perfgate.joining.MeasuredPart.left`. So what is measured
    again does not depend on what was found, and no gate has a second chance.

    Args:
        plan: As it was printed.
        folders: Of runs or nights, or that hold one, whatever else is in them.
    """
    done = set[str]()
    for folder in folders:
        for where in _measured_in(folder):
            try:
                part, open_cells = _part_and_left(where)
            except PerfgateError:  # what cannot be read has decided nothing
                continue
            if part.digest == plan.digest:
                done |= part.names - open_cells
    left = []
    for entry in plan.include:
        cells = tuple(name for name in entry.cells if name not in done)
        if cells:
            left.append(entry if cells == entry.cells else entry.model_copy(update={"cells": cells, "minutes": None}))
    return ShardsLeft(include=tuple(left))


def _measured_in(folder: Path) -> Iterator[Path]:
    """The nights that a folder is or holds, and the runs."""
    for name in (MANIFEST, RUN):
        for where in (name, f"*/{name}"):
            yield from (file.parent for file in sorted(folder.glob(where)))


def _part_and_left(folder: Path) -> tuple[MeasuredPart, frozenset[str]]:
    if not (folder / MANIFEST).exists():
        part = MeasuredPart.read(folder)
        return part, part.left()
    begun = run_of(folder, REFERENCE)
    if begun is None:
        raise NotMeasuredError("no reference was measured", where=str(folder), code="not-started")
    part = MeasuredPart.read(begun)
    return part, _left_of_its_night(part)


def _given_up(half: MeasuredPart) -> frozenset[str]:
    """The cells that count as another machine measured them; none where it cannot be known."""
    try:
        return _left_of_its_night(half)
    except PerfgateError:
        return frozenset()


def _left_of_its_night(half: MeasuredPart) -> frozenset[str]:
    """The cells of a night that can be measured anew: no head was looked at, and no reference moved.

    Args:
        half: A half of it.
    """
    night = half.folder.parent.parent
    runs = [run_of(night, which) for which in (REFERENCE, HEAD)]
    reference, head = (MeasuredPart.read(run) if run is not None else None for run in runs)
    of_reference = reference.left(beside_itself=True) if reference else half.names
    return of_reference & (head.left() if head else half.names)
