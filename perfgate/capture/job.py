"""What takes a trial: the protocol that engines and the fake share."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfgate.capture.settling import SETTLE_S
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Artifact, Failure, Kind, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import images_of


@dataclass(frozen=True)
class Job:
    """One trial to take.

    Args:
        kind: What is measured: times, kernels, counters, calls or where the host's time goes.
        cell: The cell.
        side: The side.
        subject: The build on that side.
        index: Number of the trial in its run.
        pair: Number of the pair; ``None`` for a warm-up trial.
        position: Place in the pair, 0 or 1, or in the order of a round of several heads.
        visit: Index of the visit.
        run_folder: The run's folder; artifacts are named relative to it.
        folder: The trial's own folder, which exists and is empty.
        cache_folder: Where this subject's compile caches live during the visit.
        cold: Whether it begins with empty ones, which nobody keeps.
        bytecode: Where its interpreter keeps bytecode during the visit; where ``None`` it writes none.
        environment: The allow-listed variables of this machine, before the scenario's and the subject's own.
        owner: The mark that every process of this trial carries, see :mod:`perfgate.machine.processes`.
        decode: What the last valid traced trial of this side saw; ``None`` where there is none.
        gpu: Whether the engine runs on a GPU; on the CPU there is no kernel for a profiler of GPUs to see.
        fastest_probe_ns: The shortest reading of the probe on each rank in this run so far; empty where the probe does
            not tell the state of such GPUs, or nothing was read.
        settle_s: How long warm-up may go on for a GPU that is slow beside that, seconds.
        ahead: The trials that are foreseen to come next, for which a driver may start processes; their folders do not
            exist yet. Empty where that is not known or not wanted.
        station: Number of the station; engines side by side need ports of their own.
        iterations: How many a timed trial measures, where that was chosen; else as its cell declares.
        heads: In a run of several heads which it is, of the base those that it is measured beside.
        architecture: Its compute capability times ten, by which ncu's names differ; ``None`` where it is not known.
    """

    kind: Kind
    cell: Cell
    side: Side
    subject: Subject
    index: int
    pair: int | None
    position: int
    visit: int
    run_folder: Path
    folder: Path
    cache_folder: Path
    environment: Mapping[str, str]
    owner: str
    decode: Any = None
    gpu: bool = False
    fastest_probe_ns: tuple[int, ...] = ()
    settle_s: float = SETTLE_S
    architecture: int | None = None
    bytecode: Path | None = None
    cold: bool = False
    iterations: int | None = None
    ahead: tuple[Job, ...] = ()
    station: int = 0
    heads: tuple[str, ...] = ()

    @property
    def times_count(self) -> bool:
        """Whether anything follows from how long its iterations take: of warm-up how many they are, if that is open."""
        return self.pair is not None or (self.iterations is None and self.cell.measure.choose is not None)

    @property
    def label(self) -> str:
        """What the build is called in its run: its side, or its name among several heads."""
        return self.heads[0] if self.heads and self.side == "head" else self.side

    @property
    def engine_args(self) -> dict[str, Any]:
        """The arguments of the engine: the scenario's, with the subject's in their place.

        ``{model}`` in one is the model's folder: a draft model may be in a folder of it.
        """
        args = {**self.cell.engine.args, **self.subject.args}
        return args if self.cell.model_folder is None else _in_folder(args, self.cell.model_folder)

    @property
    def engine_request(self) -> dict[str, Any]:
        """What a worker is told of the engine that it builds, see :mod:`perfgate.capture.vllm_worker`."""
        model = self.cell.engine.model
        # The processor of a model that sees needs its tokenizer; for token ids alone none is made.
        tokenizing = {"skip_tokenizer_init": False} if images_of(self.cell.workload) else {}
        return {
            "model": self.cell.model_folder or model.hub,
            "revision": model.revision,
            "dummy": model.config is not None,
            "engine_args": {**tokenizing, **self.engine_args},
        }

    def packed(self, name: str, content: bytes) -> Artifact:
        """Content in a file of the trial's folder, with gzip; its digest depends on the content alone."""
        file = self.folder / f"{name}.gz"
        file.write_bytes(gzip.compress(content, mtime=0))
        return Artifact.of(file, self.run_folder)

    def trial(self, *, t0_utc: str, duration_ns: int, **measured: Any) -> Trial:
        """This job's trial, with what was measured of it: the fields of :class:`perfgate.metrics.trial.Trial`."""
        return Trial(
            kind=self.kind,
            index=self.index,
            pair=self.pair,
            position=self.position,
            subject=self.side,
            heads=self.heads,
            visit=self.visit,
            t0_utc=t0_utc,
            duration_ns=duration_ns,
            **measured,
        )


class Collector(Protocol):
    """Takes trials of every kind."""

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """Why no trial of this cell can be taken, found without starting an engine; ``None`` when it can."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one trial; everything it started has ended when this returns or raises, but for ``job.ahead``.

        A failure of the engine is part of the trial it returns, never an exception. ``progress`` takes short phrases
        for people: ``starting the engine``, ``iteration 3 of 22``.

        Raises:
            KeyboardInterrupt: The user stopped; the engine was ended first.
            OSError: The trial's folder cannot be written.
        """

    def release(self) -> None:
        """End whatever was started for the ``ahead`` of a job, because no such trial comes."""


def _in_folder(value: Any, folder: str) -> Any:
    """Arguments with the model's folder in the place of ``{model}``, however deep."""
    if isinstance(value, str):
        return value.replace("{model}", folder)
    if isinstance(value, Mapping):
        return {name: _in_folder(argument, folder) for name, argument in value.items()}
    return [_in_folder(argument, folder) for argument in value] if isinstance(value, (list, tuple)) else value
