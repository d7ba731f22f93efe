"""Folders of ``path=`` of which no engine used anything: what was measured is then the build without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfgate.metrics.path_use import FolderUse, ProcessUse
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure
from perfgate.record.run_record import Record
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import same_build
from perfgate.units import listed, plural

UNUSED: Final = "path-unused"
_NAMED: Final = 4


State = Literal["used", "unused", "unknown"]


@dataclass(frozen=True)
class FolderSeen:
    """What is known of a folder over the valid trials of a side, those of warm-up among them.

    Args:
        folder: As the subject names it.
        state: ``used`` where some process used something; ``unused`` where none did and some engine told all of it;
            ``unknown`` where engines were asked and none told all of it.
        told: Engines all of whose processes told.
        engines: Engines that were asked.
        uses: What each process that told used of it.
    """

    folder: str
    state: State
    told: int
    engines: int
    uses: tuple[FolderUse, ...]

    @property
    def engines_seen(self) -> str:
        """``3 engines``, and of how many where not all told."""
        rest = f", and of {self.engines - self.told} it is not known" if self.told < self.engines else ""
        return f"{plural(self.told, 'engine')}{rest}"


def folders_seen(record: Record, side: Side) -> tuple[FolderSeen, ...]:
    """What is known of each folder of a side that is not declared as data; nothing where no trial was asked."""
    subject = record.subjects[side]
    answers = [trial.used for trial in record.trials if trial.subject == side and trial.failure is None]
    asked = [_readable(used, len(subject.path)) for used in answers if used is not None]
    seen = []
    for number, folder in enumerate(subject.path if asked else ()):
        if folder in subject.data:
            continue
        uses = [folders[number] for used in asked for folders in used if folders is not None]
        full_answers = sum(bool(used) and None not in used for used in asked)
        state: State = "used" if any(use.used for use in uses) else "unused" if full_answers else "unknown"
        seen.append(FolderSeen(folder, state, full_answers, len(asked), tuple(uses)))
    return tuple(seen)


def only_unused_differ(sides: Mapping[Side, tuple[Record, Side]]) -> str:
    """Where two sides differ by folders alone that nothing used, which these are; empty where they do not.

    Of base and head the record is given, and which side of that it is.
    """
    subjects: list[Subject] = []
    unused: list[str] = []
    for name, (record, side) in sides.items():
        folders = [seen for seen in folders_seen(record, side) if seen.state == "unused"]
        subjects.append(without(record.subjects[side], [seen.folder for seen in folders]))
        unused += [f"{name} by path={seen.folder} ({seen.engines_seen})" for seen in folders]
    same = len(subjects) > 1 and same_build(*subjects)
    if not unused or not same or same_build(*(record.subjects[side] for record, side in sides.values())):
        return ""
    return f"nothing else differs, and no process used anything of it: {listed(unused, _NAMED)}"


def _readable(used: Sequence[ProcessUse], folders: int) -> list[tuple[FolderUse, ...] | None]:
    """What each process told, in as many words as there are folders."""
    return [use.folders if use.folders is not None and len(use.folders) == folders else None for use in used]


def without(subject: Subject, folders: Collection[str]) -> Subject:
    """A subject without some of its folders."""
    return subject.model_copy(update={"path": tuple(entry for entry in subject.path if entry not in folders)})


def ends(record: Record) -> dict[str, Failure]:
    """Why a record goes no further, by head: its sides differ by folders alone that nothing used so far."""
    texts: Iterable[tuple[str, str]] = (
        (head, only_unused_differ({side: (comparison, side) for side in comparison.subjects}))
        for head, comparison in record.comparisons().items()
    )
    return {head: Failure(code=UNUSED, text=text) for head, text in texts if text}
