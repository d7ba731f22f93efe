"""The GPUs of a visit: which they are, who else uses them, their clocks, and what they do during a trial."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from perfgate.capture.engine import gpus_of
from perfgate.capture.job import Job
from perfgate.errors import NotMeasuredError, UsageError
from perfgate.machine.accelerator import Accelerators, GpuError, connect
from perfgate.machine.clocks import ClockGuard, undo_stale
from perfgate.machine.fingerprint import Machine, comparable, read_machine
from perfgate.machine.processes import carries_mark
from perfgate.machine.sampler import Sampler, company
from perfgate.machine.telemetry import disturbance
from perfgate.metrics.trial import Artifact, Failure, Trial
from perfgate.record.run_record import Run
from perfgate.scenario.plan import Cell

VISIBLE = "CUDA_VISIBLE_DEVICES"
IDLE_WAIT_S = 10.0
"""How long GPUs are given to become free: the driver takes a moment to clear away an engine that has ended."""


class Gpus:
    """Those that the run's largest engine takes, none on a machine without.

    Args:
        run: Its manifest.
        environment: The variables that engines see; ``CUDA_VISIBLE_DEVICES`` chooses.
        tell: Told, in sentences, what becomes of clocks.
        nvml: The driver; ``None`` where there is none.

    Raises:
        NotMeasuredError: ``gpu-missing``: there are too few; or the driver does not answer.
    """

    def __init__(
        self, run: Run, environment: Mapping[str, str], tell: Callable[[str], object], nvml: Accelerators | None
    ) -> None:
        self._run = run
        self.environment = environment
        self._tell = tell
        self._nvml = nvml
        self._clocks: ClockGuard | None = None
        self.machine = self._find(nvml)
        self.uuids = tuple(gpu.uuid for gpu in self.machine.gpus)
        self.names = tuple(gpu.name for gpu in self.machine.gpus)
        self.nodes = tuple(gpu.numa_node for gpu in self.machine.gpus)
        """The memory node that each is attached to, where it is known."""
        self.name = f"GPU {environment.get(VISIBLE, '')}"
        """For people, where there are several stations."""
        self.architecture = nvml.architecture(self.uuids[0]) if nvml and self.uuids else None

    @classmethod
    @contextlib.contextmanager
    def connected(cls, run: Run, environment: Mapping[str, str], tell: Callable[[str], object]) -> Iterator[Self]:
        """The GPUs of a run, with a connection to the driver for the length of a block where there is one."""
        with connect() or contextlib.nullcontext() as nvml:
            yield cls(run, environment, tell, nvml)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """A block for which the GPUs are ours: stale locks of their clocks undone, nobody else on them.

        Raises:
            NotMeasuredError: ``gpu-busy``: somebody else computes there.
        """
        if self._nvml is None:
            yield
            return
        for lease in undo_stale(self._nvml, self.uuids):
            self._tell(f"released the clocks of {lease.uuid}, left locked: {lease}")
        with ClockGuard(self._nvml, self._run.name, self._tell) as self._clocks:
            if busy := self.await_idle(self.uuids):
                raise NotMeasuredError(busy, code="gpu-busy")
            yield

    def of(self, cell: Cell) -> tuple[str, ...]:
        """UUIDs of those that the larger of the two sides' engines takes; empty on the CPU."""
        return self.uuids[: ranks(self._run, cell)]

    def set_clocks(self, cell: Cell) -> None:
        """Hold the clocks as the cell has them, or none.

        Raises:
            NotMeasuredError: They cannot be held.
        """
        if self._clocks is not None and self.uuids:
            self._clocks.apply(self.of(cell), cell.clocks.sm_mhz, cell.clocks.memory_mhz)
        elif cell.clocks.mode == "lock":
            raise NotMeasuredError(
                "clocks cannot be locked: there is no GPU here, or none that is visible",
                where=cell.name,
                code="clock-not-supported",
            )

    def await_idle(self, uuids: Sequence[str]) -> str:
        """Who is still on these GPUs after a while, in words; empty when all are free."""
        until_s = time.monotonic() + IDLE_WAIT_S
        while self._nvml is not None and (processes := company(self._nvml, uuids)):
            if time.monotonic() > until_s:
                return processes
            time.sleep(0.25)
        return ""

    def watch(self, job: Job, take: Callable[[], Trial]) -> Trial:
        """A trial with what its GPUs did meanwhile; it fails where they were disturbed."""
        if self._nvml is None:
            return take()
        with Sampler(self._nvml, self.of(job.cell), lambda pid: carries_mark(pid, job.owner)) as sampler:
            trial = take()
        file = job.folder / "telemetry.json.gz"
        sampler.write(file)
        samples = Artifact.of(file, job.run_folder)
        telemetry = sampler.read([iteration.window for iteration in trial.iterations])
        failure = trial.failure
        if sampler.error is not None:
            before = f"\n{failure.code}: {failure.text}" if failure else ""
            failure = Failure(code=sampler.error.code, text=f"{sampler.error.finding}{before}")
        elif failure is None:
            spoilt = disturbance(telemetry, job.cell.clocks.sm_mhz, job.cell.clocks.memory_mhz)
            failure = Failure(code=spoilt[0], text=spoilt[1]) if spoilt else self._left_behind(job)
        return trial.model_copy(update={"failure": failure, "telemetry": telemetry, "samples": samples})

    def _left_behind(self, job: Job) -> Failure | None:
        """A failure where somebody is on the GPUs once the engine is gone: the trial had company that was not seen."""
        try:
            busy = self.await_idle(self.of(job.cell))
        except GpuError as error:
            return Failure(code=error.code, text=error.finding)
        return Failure(code="gpu-busy", text=f"after the engine's end: {busy}") if busy else None

    def _find(self, nvml: Accelerators | None) -> Machine:
        """This machine, with these GPUs; none where they are hidden on purpose."""
        visible = self.environment.get(VISIBLE)
        elsewhere = all(subject.url for subject in self._run.built.values())
        if nvml is None or visible in ("", "-1") or elsewhere:
            return read_machine()
        gpus = nvml.gpus(self.environment)
        needed = largest(self._run)
        if len(gpus) < needed and (gpus or visible is not None):
            named = f"CUDA_VISIBLE_DEVICES={visible} names" if visible is not None else "there are"
            raise NotMeasuredError(
                f"the largest engine takes {needed} GPUs, and {named} {len(gpus)} that can be watched",
                code="gpu-missing",
            )
        return read_machine(gpus[:needed], nvml.driver, nvml.cuda)


def ranks(run: Run, cell: Cell) -> int:
    """How many GPUs the largest of its builds' engines takes."""
    return max(gpus_of({**cell.engine.args, **subject.args}) for subject in run.built.values())


def largest(run: Run) -> int:
    """How many GPUs the largest engine of a run takes."""
    return max((ranks(run, cell) for cell in run.cells), default=1)


def stations(needed: int, environment: Mapping[str, str]) -> list[str]:
    """Values of ``CUDA_VISIBLE_DEVICES``, each with so many GPUs that are free."""
    with connect() or contextlib.nullcontext() as nvml:
        if nvml is None:
            return []
        gpus = nvml.gpus(environment)
        identifiers = _identifiers(environment) or [str(n) for n in range(len(gpus))]
        free = [
            (identifier, gpu.numa_node)
            for identifier, gpu in zip(identifiers[: len(gpus)], gpus, strict=True)
            if not company(nvml, [gpu.uuid])
        ]
    return _groups(free, needed)


def first_station(needed: int, environment: Mapping[str, str]) -> str:
    """The station that engines take where nothing else is asked for."""
    return ",".join((_identifiers(environment) or [*map(str, range(needed))])[:needed])


def find_gpus(
    stack: contextlib.ExitStack, run: Run, environment: Mapping[str, str], asked: str, tell: Callable[[str], object]
) -> list[Gpus]:
    """The GPUs of each station, with connections to the driver of their own for as long as the stack is open.

    Args:
        stack: Closes the connections.
        run: The manifest.
        environment: The variables that engines see.
        asked: ``all`` that are visible and free; names as ``CUDA_VISIBLE_DEVICES`` has them; empty for one station, on
            the first GPUs.
        tell: Told which GPUs are left out, and later what becomes of clocks.

    Raises:
        UsageError: A name that is not visible, or several stations where trials are not taken in pairs.
        NotMeasuredError: ``gpu-busy``: none is free; ``gpu-missing``; or the driver does not answer.
    """
    visible = [environment]
    if asked:
        visible = [{**environment, VISIBLE: names} for names in _asked_for(asked, largest(run), environment)]
    if len(visible) > 1:
        _require_pairs(run)
    first, *others = [stack.enter_context(Gpus.connected(run, variables, tell)) for variables in visible]
    uuids = [*first.uuids, *(uuid for gpus in others for uuid in gpus.uuids)]
    if twice := [uuid for uuid, times in Counter(uuids).items() if times > 1]:
        raise UsageError(f"--gpus {asked}: {twice[0]} has two of these names", remedy="Name each GPU once.")
    cards = [first]
    for gpus in others:
        if differences := comparable(first.machine, gpus.machine):
            tell(f"{gpus.name} is left out: it is not like {first.name}: {'; '.join(differences)}")
        else:
            cards.append(gpus)
    return cards


def guard(stack: contextlib.ExitStack, cards: Sequence[Gpus], tell: Callable[[str], object]) -> list[Gpus]:
    """Those that nobody else uses, ours for as long as the stack is open.

    Raises:
        NotMeasuredError: ``gpu-busy``: there are none.
    """
    free: list[Gpus] = []
    for number, gpus in enumerate(cards, 1):
        try:
            stack.enter_context(gpus.guarded())
            free.append(gpus)
        except NotMeasuredError as error:
            if number == len(cards) and not free:
                raise
            tell(f"{gpus.name} is left out: {error.finding}")
    return free


def _asked_for(asked: str, needed: int, environment: Mapping[str, str]) -> list[str]:
    """A value of ``CUDA_VISIBLE_DEVICES`` for each station."""
    with connect() or contextlib.nullcontext() as nvml:
        if nvml is None or not nvml.gpus(environment):
            raise NotMeasuredError("there is no GPU here", where=f"--gpus {asked}", code="gpu-missing")
    if asked == "all":
        if not (groups := stations(needed, environment)):
            raise NotMeasuredError(f"no {needed} GPUs here are free", where="--gpus all", code="gpu-busy")
        return groups
    names = [name.strip() for name in asked.split(",")]
    visible = _identifiers(environment) or names
    wrong = "named twice" if len({*names}) < len(names) else f"no multiple of {needed}" if len(names) % needed else ""
    if not all(name and name in visible for name in names):
        wrong = f"CUDA_VISIBLE_DEVICES={environment.get(VISIBLE, '')} does not have all of them"
    if wrong:
        remedy = f"Name GPUs as CUDA_VISIBLE_DEVICES does, {needed} for each engine, or: --gpus all"
        raise UsageError(f"--gpus {asked}: {wrong}", remedy=remedy)
    return _groups([(name, None) for name in names], needed)  # whoever names them groups them


def _require_pairs(run: Run) -> None:
    """Refuse several stations where trials on one card would be held against those on another."""
    if run.fixed:
        text = "trials of one side alone are held against other visits, and cards differ by more than builds"
        raise UsageError(f"--gpus names several stations: {text}", remedy="Name the GPUs of one.")
    environments = [*(cell.engine.env for cell in run.cells), *(subject.env for subject in run.built.values())]
    if any(VISIBLE in variables for variables in environments):
        raise UsageError(f"--gpus: the scenario or a build sets {VISIBLE} itself", remedy="Remove it there.")


def _identifiers(environment: Mapping[str, str]) -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` names; empty where it is not set."""
    return [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def _groups(gpus: Sequence[tuple[str, int | None]], needed: int) -> list[str]:
    """Names, each with its memory node, in groups of so many: in order, and within one node as far as that goes."""
    here: dict[int | None, list[int]] = defaultdict(list)
    for place, (_, node) in enumerate(gpus):
        here[node].append(place)
    groups, left = list[list[int]](), list[int]()
    for places in here.values():
        whole = len(places) - len(places) % needed
        groups += [places[n : n + needed] for n in range(0, whole, needed)]
        left += places[whole:]
    left.sort()
    groups += [left[n : n + needed] for n in range(0, len(left) - needed + 1, needed)]
    return [",".join(gpus[place][0] for place in group) for group in sorted(groups)]
