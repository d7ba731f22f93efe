"""Folders of ``path=`` of which no engine used anything: what was measured is then the build without them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from perfgate.metrics.trial import Side
from perfgate.models import Note
from perfgate.record.run_record import Record
from perfgate.units import plural

UNUSED: Final = "path-unused"
"""The caution of such a trial, whatever its kind; told of a side where all valid trials have it."""


def unused_path(record: Record, side: Side) -> Iterator[Note]:
    """Says so of a side of a record whose folders no valid trial used, those of warm-up among them."""
    own = [trial for trial in record.trials if trial.subject == side and trial.failure is None]
    if own and all(UNUSED in trial.cautions for trial in own):
        path = os.pathsep.join(record.subjects[side].path)
        yield Note(code=UNUSED, text=f"{side}: nothing of path={path} was imported ({plural(len(own), 'engine')})")
