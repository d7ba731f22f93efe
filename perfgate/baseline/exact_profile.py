"""Exact profiles: what of a cell repeats exactly, kept in a file, so that one trial of a later build is enough to tell.

A profile holds what the host calls (:mod:`perfgate.calls.host_calls`), what a decode step launches and moves where the
scenario has it traced or counted, and what its engine holds in memory, by cell, GPU model, minor version of Python and
instrument. Host, card and versions of packages do not belong to that key: counts travel, and another version of vLLM is
what they are compared for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from annotated_types import MinLen
from pydantic import Field

from perfgate.calls.host_calls import HostCalls, pooled
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import NotMeasuredError, RecordError, UsageError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.json_text import BASELINE
from perfgate.machine.versioned_json import parse_content, read_bytes, validated, write_model
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import KINDS, TAKE_AGAIN, Artifact, Code, Kind, Trial
from perfgate.models import Frozen
from perfgate.record.identity import Measured
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import Record, Run, read_records, record_digest
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject_words import same_build
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.inventory import by_rank
from perfgate.trace.rank_steps import each_rank

PROFILE_FORMAT: Final = "perfgate-profile/1"
COPIES = "profiles"
"""Folder of a run that keeps the profiles that it is judged against."""
LONGEST_REASON = 1000
CAPACITIES: Final = ("kv_token_capacity", "model_memory")
"""Metrics of an engine's memory that repeat."""
NEEDED: Final[dict[Kind, Code]] = {
    "called": "evidence-missing", "traced": "evidence-missing", "counted": "counters-missing",
}  # fmt: skip
"""Kinds of trial that a profile is made of, with the reason code of a cell that declares one and has none."""


class Accepted(Frozen):
    """A build whose calls were accepted as what a cell runs.

    Args:
        time_utc: When, ISO 8601.
        reason: Why.
        run: Name of the run that counted them.
        record: Digest of its record.
        versions: Packages of the build.
    """

    time_utc: str
    reason: str
    run: str
    record: str
    versions: dict[str, str]


class Profile(Frozen):
    """What of one cell repeats exactly.

    Args:
        cell: What was measured.
        gpu: Name of the GPU; empty where engines run on the CPU.
        calls: What the host calls, over all trials that it was learnt from.
        ranks: What its traced decode steps launch, rank by rank, without waits in collectives; empty where none was.
        counted: What ncu counted of single launches; empty where nothing was.
        capacity: The least and the most that its traced engines held, by name in :data:`CAPACITIES`.
        accepted: Every build that was accepted, the newest last.
    """

    format: Literal["perfgate-profile/1"] = PROFILE_FORMAT
    cell: Measured
    gpu: str
    calls: HostCalls
    ranks: Annotated[tuple[DecodeSteps, ...], Field(exclude_if=operator.not_)] = ()
    counted: Annotated[tuple[CountedStep, ...], Field(exclude_if=operator.not_)] = ()
    capacity: Annotated[dict[str, tuple[int, int]], Field(exclude_if=operator.not_)] = {}
    accepted: Annotated[tuple[Accepted, ...], MinLen(1)]

    @property
    def file_name(self) -> str:
        """Unique among profiles."""
        counted = f"py{self.calls.python} {self.calls.instrument}"
        key = f"{self.cell.name} {self.cell.cell_id[:8]} {self.gpu or 'cpu'} {counted}"
        return f"{re.sub(r'[^a-z0-9._]+', '-', key.lower()).strip('-')}.json"


def capacity_of(trials: Iterable[Trial]) -> dict[str, tuple[int, int]]:
    """The least and the most that engines held, by name in :data:`CAPACITIES`; what none of them tells is left out.

    Args:
        trials: Of one kind, because a profiler takes memory, too; called and counted ones tell nothing.
    """
    every = [(name, METRICS[name].summarise(trial)) for trial in trials for name in CAPACITIES]
    sizes = {
        name: [int(value) for capacity, value in every if capacity == name and value is not None] for name in CAPACITIES
    }
    return {name: (min(values), max(values)) for name, values in sizes.items() if values}


def gpu_of(record: Record) -> str:
    """The GPU that a record was measured on."""
    return next((gpu.name for gpu in record.visits[-1].machine.gpus), "") if record.visits else ""


def learn_profiles(run_folder: Path, folder: Path, reason: str, side: Side | None = None) -> list[Path]:
    """Write what a run counted into the profiles of a folder, each beside what was accepted before.

    Args:
        run_folder: The run.
        folder: Of profiles; made where it is not there.
        reason: Why this is what the cells run from now on.
        side: Whose trials; both sides' where they are one build, whose differences are then learnt as ranges.

    Returns:
        The files.

    Raises:
        UsageError: There is no reason, or the sides are two builds.
        NotMeasuredError: A cell has no valid trial of a kind that it declares: ``evidence-missing`` or
            ``counters-missing``.
        RecordError: The run or a profile cannot be read.
    """
    check_reason(reason)
    run = read_manifest(run_folder)
    run.refuse_several(str(run_folder))
    if side is None and len(run.subjects) > 1 and not same_build(*run.subjects.values()):
        raise UsageError("the run measured two builds", remedy="Say whose calls to accept: --side base or --side head.")
    sides = [name for name in run.subjects if side in (None, name)]
    learnt = list(_learnt(run_folder, run, sides, reason))
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / profile.file_name for profile in learnt]
    for file, profile in zip(files, learnt, strict=True):
        before = read_profile(file).accepted if file.exists() else ()
        write_model(file, profile.model_copy(update={"accepted": (*before, *profile.accepted)}))
    return files


def check_reason(reason: str) -> None:
    """See that there is one, before anything is counted.

    Raises:
        UsageError: There is none, or a whole page.
    """
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise UsageError(f"a profile needs a reason of at most {LONGEST_REASON} characters: --reason '...'")


def _learnt(run_folder: Path, run: Run, sides: Sequence[Side], reason: str) -> Iterator[Profile]:
    records = {record.cell.cell_id: record for record in read_records(run_folder, run)}
    for cell in run.plan.cells:
        record = records.get(cell.cell_id)
        of = {kind: [t for side in sides for t in record.judged_trials(side, kind)] if record else [] for kind in KINDS}
        needed = (kind for kind in NEEDED if kind == "called" or cell.sampling(kind) is not None)
        missing: Kind = next((kind for kind in needed if not of[kind]), "called")
        if record is None or not of[missing]:
            text = record.stopped.text if record and record.stopped else f"no valid {missing} trial was taken"
            raise NotMeasuredError(text, where=f"{run_folder}: {cell.name}", code=NEEDED[missing])
        traced = [each_rank(trial.decode, trial.payload("ranks")) for trial in of["traced"]]
        yield Profile(
            cell=Measured.of(cell),
            gpu=gpu_of(record),
            calls=pooled([calls for trial in of["called"] if (calls := trial.payload("calls"))]).anywhere(),
            ranks=tuple(rank.without_columns() for rank in by_rank(traced)),
            counted=tuple(trial.counted for trial in of["counted"] if trial.counted),
            capacity=capacity_of(of["traced"]),
            accepted=(
                Accepted(
                    time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
                    reason=reason.strip(),
                    run=run.name,
                    record=record_digest(record),
                    versions=of["called"][0].versions,
                ),
            ),
        )


def read_profile(file: Path) -> Profile:
    """A profile.

    Raises:
        RecordError: It is missing, is none, or is of a newer format.
    """
    return validated(Profile, parse_content(read_bytes(file, BASELINE), PROFILE_FORMAT, str(file), BASELINE), str(file))


def find_profiles(folder: Path, cells: Iterable[Cell]) -> dict[str, tuple[Path, ...]]:
    """The files of profiles by the cells that they are of; none for a cell that is new.

    Raises:
        RecordError: One of the folder cannot be read, or two are of the same, which would hide what differs between
            them.
    """
    cell_ids: dict[Path, str] = {}
    keys: dict[tuple[str, str, str], Path] = {}
    for file in sorted(folder.glob("*.json")):
        profile = read_profile(file)
        cell_ids[file] = profile.cell.cell_id
        first = keys.setdefault((profile.cell.cell_id, profile.gpu, profile.calls.key), file)
        if first != file:
            finding = f"is a second profile of {profile.cell.name} beside {first.name}"
            raise RecordError(finding, where=str(file), remedy="Delete the older one.")
    return {
        cell.cell_id: tuple(file for file, cell_id in cell_ids.items() if cell_id == cell.cell_id) for cell in cells
    }


def keep_profiles(run_folder: Path, files: Mapping[str, Sequence[Path]]) -> dict[str, tuple[Artifact, ...]]:
    """Copy profiles into a run's folder; what the run's manifest keeps of them."""
    (run_folder / COPIES).mkdir()
    copies = {}
    for cell_id, sources in files.items():
        targets = [run_folder / COPIES / file.name for file in sources]
        for file, target in zip(sources, targets, strict=True):
            target.write_bytes(file.read_bytes())
        copies[cell_id] = tuple(Artifact.of(target, run_folder) for target in targets)
    return copies


def kept_profiles(run_folder: Path, run: Run) -> dict[str, tuple[Profile, ...]]:
    """The profiles that a run keeps, by cell_id.

    Raises:
        RecordError: A copy is missing, or is not what the manifest names.
    """
    return {
        cell_id: tuple(_kept(run_folder / copy.path, copy) for copy in copies)
        for cell_id, copies in (run.profiles or {}).items()
    }


def _kept(file: Path, copy: Artifact) -> Profile:
    profile = read_profile(file)
    if sha256_hex(file.read_bytes()) != copy.sha256:
        raise RecordError("is not the profile that the run was judged against", where=str(file), remedy=TAKE_AGAIN)
    return profile
