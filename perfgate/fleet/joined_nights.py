"""Nights of several machines: what they measured of one plan becomes one night; and what is left of a plan.

A machine that could not measure costs the cells that it did not come to. These are measured again by another one, the
reference too, since that says whether the head's difference may be that machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.fleet.joining import MeasuredPart, agreed_in, join, sort_out
from perfgate.fleet.nightly import HALVES, HEAD, MANIFEST, REFERENCE, Night, night_in, read_night, run_of
from perfgate.machine.versioned_json import write_model
from perfgate.record.run_names import RUN
from perfgate.record.shards import ShardPlan, ShardsLeft


def join_nights(folders: Sequence[Path], runs: Path, plan: ShardPlan) -> Path:
    """Make one night of those that several machines measured of one plan; the visits beside an anchor stay with them.

    Folders are those of nights, or hold a night each. The night's folder is made in ``runs``, by the plan's name.

    Raises:
        NotMeasuredError: There is no night, or of none of them a first half.
        PerfgateError: See :func:`perfgate.fleet.joining.join`.
    """
    nights = [night for folder in folders if (night := night_in(folder)) is not None]
    if not nights:
        raise NotMeasuredError("no night was given", code="shard-missing")
    folder = runs / plan.run
    first = _manifest_of(nights, plan).model_copy(update={"name": plan.run, "shard": None})
    if folder.exists() and not (folder / MANIFEST).exists():
        raise UsageError("holds another run than these nights make", where=str(folder), remedy="Name another --runs.")
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / MANIFEST, first)
    held = [night for night in nights if run_of(night, REFERENCE) is not None]  # what no reference vouches for is none
    for number, half in enumerate(HALVES):
        (folder / half).mkdir(exist_ok=True)
        begun = [run for night in held if (run := run_of(night, half)) is not None]
        if begun or half == REFERENCE:
            join(begun, folder / half, agreed_in(plan, number), first.sides(half), _given_up)
        held = _taken(held, folder, half)  # a head beside another machine's reference would have nobody to vouch for it
    return folder


def _manifest_of(nights: Sequence[Path], plan: ShardPlan) -> Night:
    """The manifest that says what the joined night measured: that of a first try of the plan, where there is one."""
    readable = list[Night]()
    for night in nights:
        with suppress(PerfgateError):
            readable.append(read_night(night))
    if not readable:
        return read_night(nights[0])  # which says why it cannot be read
    whole = [night for night in readable if night.shard is not None and night.shard.plan.digest == plan.digest]
    return min(whole or readable, key=lambda night: bool(night.shard and night.shard.again))


def nights_joined(folder: Path, given: Sequence[Path]) -> list[Path]:
    """Those of the nights given that a joined night was made of, and no other.

    Raises:
        RecordError: The folder is not a joined night.
    """
    nights = [night for night in map(night_in, given) if night is not None and run_of(night, REFERENCE) is not None]
    for half in HALVES:
        nights = _taken(nights, folder, half)
    return nights


def _taken(nights: Sequence[Path], folder: Path, half: str) -> list[Path]:
    """Those of some nights whose half a joined night's folder has, or that did not begin it."""
    begun = {night: run for night in nights if (run := run_of(night, half)) is not None}
    joined, taken = run_of(folder, half), set[Path]()
    if joined is not None:
        taken = {part.folder for part in sort_out([*begun.values()], MeasuredPart.read(joined).agreed, _given_up).parts}
    return [night for night in nights if night not in begun or begun[night] in taken]


def shards_left(plan: ShardPlan, folders: Iterable[Path]) -> ShardsLeft:
    """The shards of a plan of which something can be measured anew on another machine, with those cells alone.

    Nothing is that was decided, or could have been: :meth:`perfgate.fleet.joining.MeasuredPart.left`. So what is
    measured again does not depend on what was found, and no gate has a second chance.

    Folders are those of runs or nights, or hold such, whatever else is in them.
    """
    done = set[str]()
    places = [(folder, where) for folder in folders for name in (MANIFEST, RUN) for where in (name, f"*/{name}")]
    for measured in (file.parent for folder, where in places for file in sorted(folder.glob(where))):
        try:
            part, open_cells = _part_and_left(measured)
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
    """The cells of a night that can be measured anew: no head was looked at, and no reference moved."""
    night = half.folder.parent.parent
    runs = [run_of(night, which) for which in (REFERENCE, HEAD)]
    reference, head = (MeasuredPart.read(run) if run is not None else None for run in runs)
    of_reference = reference.left(beside_itself=True) if reference else half.names
    return of_reference & (head.left() if head else half.names)
