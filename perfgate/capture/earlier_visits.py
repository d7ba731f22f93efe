"""What earlier visits of a run left: what must be as they found it, and what is taken away."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from perfgate.capture.compile_caches import FOLDERS as CACHES
from perfgate.capture.parking import FOLDERS as PARKED
from perfgate.capture.watched_builds import WatchedBuilds, in_brief
from perfgate.errors import NotComparableError, NotMeasuredError
from perfgate.machine.cleanup import remove_tree
from perfgate.machine.fingerprint import Machine, comparable
from perfgate.record.dropped_pairs import CHANGED
from perfgate.record.measured_builds import measured_digests
from perfgate.record.nested_pairs import measured_before
from perfgate.record.run_record import Run, read_records
from perfgate.scenario.subject import SHOWN

_NS: Final = 10**9


def refuse_another_machine(folder: Path, run: Run, machine: Machine) -> None:
    """Refuse a machine of another kind than that of an earlier visit.

    Raises:
        NotComparableError: ``different-machines``: it is one.
        RecordError: A record cannot be read.
    """
    visits = (visit for record in read_records(folder, run) for visit in record.visits)
    if differences := dict.fromkeys(text for visit in visits for text in comparable(visit.machine, machine)):
        raise NotComparableError(
            f"was begun on another machine: {'; '.join(differences)}",
            where=str(folder),
            remedy="Go on where it was begun, or measure anew here.",
            code="different-machines",
        )


def refuse_other_builds(folder: Path, run: Run, watched: WatchedBuilds) -> None:
    """Refuse builds that are not those which earlier visits measured; of pairs, those of the run that they are for too.

    Raises:
        NotMeasuredError: ``subject-changed``: one is another; the files that are newer than that visit are named. Or it
            is not known any more which one it is.
        RecordError: A record cannot be read.
    """
    for record, builds in measured_before(folder, run):
        for label, there in builds.items():
            now = watched.build(label, record.cell.cell_id)
            for digest, visit in measured_digests(record, there).items():
                if now is None:
                    kept = watched.digests(record.cell).get(label)
                    state = f"not known: {kept.unknown if kept else 'it is not read here'}"
                elif digest == now.digest:
                    continue
                else:
                    newer = now.written_since(int(datetime.fromisoformat(visit.t0_utc).timestamp()) * _NS)
                    state = f"{now.digest[:SHOWN]}" + (f"; newer than that: {in_brief(newer)}" if newer else "")
                raise NotMeasuredError(
                    f"{label} is not the build that was measured at {visit.t0_utc}: its files were "
                    f"{digest[:SHOWN]} and are {state}",
                    where=str(folder),
                    remedy="Put its files back, or measure anew.",
                    code=CHANGED,
                )


def sweep(folder: Path) -> None:
    """Take away what a killed visit could not: caches, folders of parked workers, what it was writing."""
    for left in (*folder.glob(f"{CACHES}*"), *folder.glob(f"{PARKED}*")):
        remove_tree(left, ignore_errors=True)
    for part in folder.glob("records/.*.part"):
        part.unlink()
