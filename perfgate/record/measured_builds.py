"""What the files of each build were when its trials were taken, as the visits of records tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfgate.record.dropped_pairs import CHANGED
from perfgate.record.run_record import Record, Visit
from perfgate.scenario.subject import SHOWN


def measured_digests(record: Record, label: str) -> dict[str, Visit]:
    """The digests of a build of which trials were taken, each with the first visit that read it."""
    trials = (trial for trial in record.trials if trial.label == label)
    taken = {trial.visit for trial in trials if trial.failure is None or trial.failure.code != CHANGED}
    digests: dict[str, Visit] = {}
    for number, visit in enumerate(record.visits):
        read = visit.builds.get(label)
        if number in taken and read and read.digest:
            digests.setdefault(read.digest, visit)
    return digests


def unlike_builds(records: Iterable[Record]) -> Iterator[str]:
    """Builds that were not the same throughout: what each is called, and in which cells it was which, in a sentence.

    Cells whose engines have module paths of their own are held against their like alone. So is each cell of what was
    built from a commit: other machines build it themselves, and two builds of it may differ in bytes.
    """
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    for record in records:
        for label, subject in record.built.items():
            alone = record.cell.cell_id if subject.built_from else ""
            key = label, alone, record.cell.engine.env.get("PYTHONPATH", "")
            for digest in measured_digests(record, label):
                earlier, where = first.setdefault(key, (digest, record.cell.name))
                if digest != earlier:
                    here = f"{digest[:SHOWN]} in {record.cell.name}"
                    yield f"{label}: files {earlier[:SHOWN]} in {where}, and {here}"
