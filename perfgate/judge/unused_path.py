"""Folders of ``path=`` that no engine used, of which that is not known, and plugins that were loaded and do nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, Protocol

from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import Trial
from perfgate.models import Note
from perfgate.record.run_record import Record
from perfgate.record.unused_folders import UNUSED, folders_seen, only_unused_differ, without
from perfgate.units import plural

UNPROVEN: Final = "load-unproven"
SAME_CALLS: Final = "no function that runs in a step differs"
SAME_STATE: Final = (
    "nothing but its own modules refers to code of it, and vLLM's functions, classes and settings are the base's"
)


class OfARecord(Protocol):
    """A side of a record, as :class:`perfgate.judge.evidence.RecordSide` is one."""

    @property
    def record(self) -> Record:
        """The record."""

    @property
    def name(self) -> Side:
        """Which side of it."""


Sides = Mapping[Side, OfARecord]


def not_measured(sides: Sides) -> Note | None:
    """Why nothing is judged: all that base and head differ by is folders that nothing used; ``None`` elsewhere."""
    text = only_unused_differ({side: (record_side.record, record_side.name) for side, record_side in sides.items()})
    return Note(code=UNUSED, text=text) if text else None


def alone_unused(record: Record, side: Side, stored: Iterable[Mapping[str, str]]) -> Note | None:
    """Why one side is held against no build that is stored: without what nothing used of it, it is that build.

    ``stored`` has the packages of each of these builds, of which nothing but packages is known.
    """
    subject = record.subjects[side]
    unused = [seen for seen in folders_seen(record, side) if seen.state == "unused"]
    left = without(subject, [seen.folder for seen in unused])
    versions = next((trial.versions for trial in record.trials if trial.subject == side and trial.versions), {})
    if not unused or left.path or left.env or left.args or not any(versions and versions == build for build in stored):
        return None
    folders = ", ".join(f"path={seen.folder} ({seen.engines_seen})" for seen in unused)
    return Note(code=UNUSED, text=f"it is the build that is stored but for what no process used: {folders}")


def unused_paths(sides: Sides) -> Iterator[Note]:
    """Says which folders of each side nothing used, and of which nobody knows, unless the other side has it too.

    Of a record that was taken before folders were told apart it is said where nothing of any was imported.
    """
    for side, record_side in sides.items():
        subject = record_side.record.subjects[record_side.name]
        beside = [other.record.subjects[other.name].path for other in sides.values() if other is not record_side]
        shared = {folder for path in beside for folder in path}
        for seen in folders_seen(record_side.record, record_side.name):
            if seen.state == "unused":
                text = f"{side}: no process used anything of path={seen.folder} ({seen.engines_seen})"
                yield Note(code=UNUSED, text=text)
            elif seen.state == "unknown" and seen.folder not in shared:
                many = plural(seen.engines, "engine")
                yield Note(code=UNPROVEN, text=f"{side}: path={seen.folder}: no process of {many} told what it used")
        trials = _trials(record_side)
        if trials and all(UNUSED in trial.cautions for trial in trials):
            path = os.pathsep.join(subject.path)
            yield Note(
                code=UNUSED, text=f"{side}: nothing of path={path} was imported ({plural(len(trials), 'engine')})"
            )


def idle_plugins(sides: Sides, *, calls_alike: bool | None) -> Iterator[Note]:
    """Says which folder of the head was loaded and changes nothing that can be seen.

    Nothing but the folder's own modules refers to its code, in no process; and vLLM's modules, variables and settings
    are in each as they were in the base's. Whatever leaves doubt says nothing.

    Args:
        sides: Base and head.
        calls_alike: Whether both sides' host calls are alike; ``None`` where they were not counted.
    """
    if not sides.keys() >= {*SIDES} or calls_alike is False:
        return
    base, head = ([_states(trial) for trial in _trials(sides[side]) if trial.used] for side in SIDES)
    if not head or not {*head} <= {*base} or () in head:
        return
    shared = sides["base"].record.subjects[sides["base"].name].path
    for seen in folders_seen(sides["head"].record, sides["head"].name):
        imported = [use for use in seen.uses if use.modules]
        apart = imported and all(use.apart for use in imported) and not any(use.libraries for use in seen.uses)
        if seen.folder in shared or not apart:
            continue
        plugins = sorted({*chain.from_iterable(use.plugins for use in seen.uses)})
        named = f"plugin {', '.join(plugins)}" if plugins else f"path={seen.folder}"
        loaded = plural(max(use.modules for use in imported), "module")
        yield Note(
            code=UNPROVEN, text=f"the head loads {named} ({loaded}); {SAME_CALLS if calls_alike else SAME_STATE}"
        )


def _trials(side: OfARecord) -> list[Trial]:
    return [trial for trial in side.record.trials if trial.subject == side.name and trial.failure is None]


def _states(trial: Trial) -> tuple[str, ...]:
    """What vLLM was in each process of a trial; empty where that is not known of one."""
    states = tuple(sorted(process.state for process in trial.used or ()))
    return states if all(states) else ()
