"""Where engines keep what they compile and tune: folders of a visit, filled from what earlier visits kept.

Engines of one side and cell share a folder for the length of a visit. Before its first trial it gets a copy of what is
kept for such an engine, if anything is; after a warm-up trial that succeeded its content is kept. What is kept is
sealed (:mod:`perfgate.machine.sealed_folders`) and has a key of all that it depends on: the build's files and where
they are, engine arguments, model, environment, compilers, driver, GPUs and processor. Workloads are not in it: those of
one engine add to one entry, which says whose warm-up trials filled it, because each may compile more.

**Who gets what.** A base is filled by bases only; a head gets what a base of the very same build filled, else what a
head of the same commit did. So no code under test fills what a base uses, nor what another change's head uses.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from perfgate.capture.build_digest import Builds, digest_of
from perfgate.capture.build_files import UnknownBuildError
from perfgate.capture.engine import BYTECODE, NO_BYTECODE, SOCKETS, TEMPORARY, engine_environment
from perfgate.capture.job import Job
from perfgate.errors import PerfgateError
from perfgate.machine.cleanup import Swept, count_files, remove_tree
from perfgate.machine.fingerprint import Machine
from perfgate.machine.sealed_folders import Seal, Store, UnfitError
from perfgate.machine.user_folders import users_caches
from perfgate.metrics.catalogue import COLD_START
from perfgate.metrics.trial import Failure, Fill, Trial
from perfgate.record.dropped_pairs import UNFIT_CACHES
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

VARIABLE: Final = "PERFGATE_CACHES"
"""Names the folder that keeps compile caches between visits; ``0`` keeps none."""
FOLDERS: Final = "cache-"
"""How a visit's folder of caches begins, in the run's folder."""
_COMPILERS: Final = ("cc", "gcc", "g++", "clang", "nvcc", "ptxas")
_MOST_TEXT: Final = 16 << 20
"""Bytes of a text file in which paths are looked for."""
_SPELLED_ALIKE: Final = re.compile(r"""[!#-&(-\[\]-~]+""")
"""A path that JSON, Python and compilers write as it is: printable ASCII without spaces, quotes and backslashes."""
_NOT_STARTED: Final = ("engine-start-failed", "engine-start-timeout")
_OF_THE_PROCESS: Final = {
    "VLLM_PORT", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TMPDIR", SOCKETS, TEMPORARY, BYTECODE, NO_BYTECODE,
}  # fmt: skip
"""Variables that differ between engines which compile the same."""


def caches_folder() -> Path | None:
    """Where caches are kept between visits; ``None`` where none are.

    ``$PERFGATE_CACHES``, else ``perfgate/caches`` in the user's folder for caches.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "0":
        return None
    if chosen:
        return Path(chosen).expanduser().absolute()
    caches = users_caches()
    return caches / "caches" if caches else None


def sweep_caches(days: float) -> list[Swept]:
    """Remove what no visit used for so long, and what is broken."""
    root = caches_folder()
    if root is None or not root.is_dir():
        return []
    try:
        return [*Store(root).sweep(days)]
    except (UnfitError, OSError) as error:
        return [Swept(root, str(error))]


def starts_cold(cell: Cell) -> bool:
    """Whether every trial of a cell begins with empty caches, because a gate rests on it."""
    return any(gate.gate.metric == COLD_START for gate in cell.gates)


@dataclass(frozen=True)
class _Engine:
    """What the engines of one folder have in common.

    Args:
        workload: Names what they run, and whose warm-up trial fills the folder.
        keys: Those by which its caches may be kept, the one to look at first first; it is filled under the last one.
        seal: Of what its folder was filled with, or was kept of it.
        grows: Whether what it holds may be kept: nothing is, or what it grew from.
        untried: Whether it was filled with what was kept, and no engine has started with that yet.
    """

    workload: str = ""
    keys: tuple[str, ...] = ()
    seal: Seal | None = None
    grows: bool = True
    untried: bool = False

    @property
    def draw(self) -> str | None:
        """Of what a warm-up trial of the workload left; ``None`` where none did."""
        return self.seal.draws.get(self.workload) if self.seal else None


class CompileCaches:
    """The compile caches of one visit; a context manager that removes them.

    Args:
        run_folder: The run's folder.
        machine: Where the visit is.
        builds: What the builds of the visit consist of.
        say: Told when what was kept cannot be used, or nothing can be kept.
        alone: Whether no other station of this visit fills caches at the same time. Of several, what is kept first is
            what all go on with, so that no side has a draw of its own at some of them.
    """

    def __init__(
        self, run_folder: Path, machine: Machine, builds: Builds, say: Callable[[str], None], *, alone: bool = True
    ) -> None:
        self._alone = alone
        self._builds = builds
        self._run_folder, self._machine, self._say = run_folder.resolve(), machine, say
        self._engines: dict[Path, _Engine] = {}
        self._compilers: dict[str, str] = {}
        self._store: Store | None = None

    def __enter__(self) -> Self:
        """Make the visit's folder. It is absolute, because every engine runs in its own trial's folder."""
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDERS, dir=self._run_folder))
        root = caches_folder()
        try:
            self._store = Store(root) if root is not None else None
        except (UnfitError, OSError) as error:
            self._say(f"compile caches are not kept: {error}")
        if self._store and not _SPELLED_ALIKE.fullmatch(str(self._folder)):
            self._store = None
            self._say(f"compile caches are not kept: {str(self._folder)!a} has a space, a quote, a backslash or a "
                      "letter beyond ASCII, which programs write in different ways")  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove it; what is kept stays."""
        remove_tree(self._folder, ignore_errors=True)

    def folder(self, cell: Cell, label: str, subject: Subject, index: int, *, cold: bool) -> Path:
        """Where the engine of a trial keeps its caches, absolute; whether it exists says nothing."""
        if cold:
            return self._folder / f"{label}-cold-{index}"
        # Each cell's own: what another one's judged trials wrote would be kept with what a warm-up trial of it fills.
        engine = digest_of([cell.cell_id, subject.model_dump(mode="json")])
        return self._folder / f"{label}-{engine[:12]}"

    def prepare(self, job: Job) -> None:
        """Fill the folder of a trial that is the first to use it, with what was kept."""
        folder = job.cache_folder
        if self._store is None or folder in self._engines or job.cold or job.subject.url:
            return
        self._engines[folder] = engine = _Engine(_workload(job.cell))  # whatever happens now, it is not tried again
        try:
            keys = self._keys(job)
        except (UnknownBuildError, OSError) as error:
            self._say(f"{job.label}: compile caches are not kept: {error}")
            return
        self._engines[folder] = engine = replace(engine, keys=keys)
        for number, key in enumerate(keys, 1):
            try:
                if (seal := self._store.take(key, folder)) is None:
                    continue
                point_home(folder, seal)
            except (UnfitError, OSError) as error:
                self._say(f"{job.label}: kept compile caches are made anew: {error}")
                remove_tree(folder, ignore_errors=True)
                continue
            self._engines[folder] = replace(engine, seal=seal, grows=number == len(keys), untried=True)
            return

    def warm(self, job: Job) -> bool:
        """Whether the folder of a trial was filled by a warm-up trial of the very same engine, or nothing fills it.

        One of another workload may have compiled less than this one needs.
        """
        self.prepare(job)
        return self._engines.get(job.cache_folder, _Engine()).draw is not None

    def will_be_warm(self, job: Job, after: Job) -> bool:
        """Whether :meth:`warm` will hold after a warm-up trial: because it is of the same engine, or that is kept."""
        if engine := self._engines.get(job.cache_folder):
            return engine.draw is not None
        if self._store is None or job.cold or job.subject.url:
            return False
        try:
            keys = self._keys(job)
            seals = [self._store.seal(key) for key in keys]
            return any(seal and _workload(job.cell) in seal.draws for seal in seals) or self._keys(after)[-1] in keys
        except (UnknownBuildError, OSError):  # told of when it is its turn
            return False

    def note(self, job: Job, trial: Trial) -> Trial:
        """Keep what a warm-up trial filled; the trial with the fill that it had, or its cold start.

        One whose engine did not start with what was kept fails with ``unfit-caches``, and its folder is to be emptied.
        """
        if job.cold:
            remove_tree(job.cache_folder, ignore_errors=True)
            started = trial.startup if trial.kind == "timed" else None
            figures = {COLD_START: started.ready_ns} if started and not started.cache_files else {}
            return trial.model_copy(update={"figures": {**trial.figures, **figures}})
        if trial.failure is not None and self._forgets(job, trial.failure):
            text = f"with kept compile caches: {trial.failure.code}: {trial.failure.text}"
            return trial.model_copy(update={"failure": Failure(code=UNFIT_CACHES, text=text)})
        engine = self._engines.get(job.cache_folder, _Engine())
        if engine.untried and trial.startup is not None:
            engine = self._engines[job.cache_folder] = replace(engine, untried=False)
        # An engine that leaves no file has no draw.
        seal = engine.seal if engine.seal and engine.seal.files else None
        fill = Fill(draw=engine.draw, filled_utc=seal.filled_utc) if seal and engine.draw else None
        if job.pair is None and job.kind == "timed" and trial.failure is None:
            self._keep(job, engine)
        return trial.model_copy(update={"fill": fill}) if fill else trial

    def empty(self, job: Job) -> None:
        """Take away what the folder of a trial holds: its engine did not start with that."""
        remove_tree(job.cache_folder, ignore_errors=True)

    def _forgets(self, job: Job, failure: Failure) -> bool:
        """Whether an engine was the first with what was kept and did not start, so that this is forgotten.

        Else one bad fill would end each visit of its build, for as long as it is kept.
        """
        engine = self._engines.get(job.cache_folder, _Engine())
        if not (self._store and engine.untried and engine.seal and failure.code in _NOT_STARTED):
            return False
        del self._engines[job.cache_folder]  # somebody else may have kept a better one by now
        try:
            self._store.forget(engine.seal)
            self._say(f"{job.label}: an engine with kept compile caches did not start; they are made anew")
        except (UnfitError, OSError) as error:
            self._engines[job.cache_folder] = _Engine(engine.workload)
            self._say(f"{job.label}: an engine with kept compile caches did not start; they are not used: {error}")
        return True

    def _keep(self, job: Job, engine: _Engine) -> None:
        if self._store is None or not engine.keys or not engine.grows:
            return
        if engine.seal and engine.draw and count_files(job.cache_folder) <= len(engine.seal.files):
            return
        try:
            job.cache_folder.mkdir(parents=True, exist_ok=True)  # an engine that leaves no file is known by that
            seal = self._store.keep(engine.keys[-1], job.cache_folder, engine.workload, engine.seal)
        except (UnfitError, PerfgateError, OSError) as error:
            self._say(f"{job.label}: compile caches are not kept: {error}")
            return
        if seal is None and not self._alone:
            remove_tree(job.cache_folder, ignore_errors=True)
            del self._engines[job.cache_folder]
            return
        # Another run may have kept its own meanwhile: this visit goes on with what it has.
        self._engines[job.cache_folder] = replace(engine, seal=seal or engine.seal, grows=seal is not None)

    def _keys(self, job: Job) -> tuple[str, ...]:
        variables = engine_environment(job)
        folder = str(job.cache_folder)
        environment = {n: v for n, v in variables.items() if n not in _OF_THE_PROCESS and not v.startswith(folder)}
        content = {
            "build": self._builds.of(job.subject, variables).placed_digest,
            "args": job.engine_args,
            "model": job.cell.model_digest,
            "environment": environment,
            "compilers": self._found(variables.get("PATH", "")),
            "machine": [self._machine.architecture, self._machine.cpu, self._machine.driver],
            "gpus": sorted({gpu.name for gpu in self._machine.gpus}),
        }
        trusted = digest_of([content, "base"])
        if job.side == "base":
            return (trusted,)
        source = job.subject.built_from
        return trusted, digest_of([content, "head", [source.commit, source.changes] if source else []])

    def _found(self, path: str) -> str:
        """What would compile: programs on the path as files, whose sizes and times change with their version."""
        if path not in self._compilers:
            digest = hashlib.sha256()
            for name in _COMPILERS:
                program = shutil.which(name, path=path)
                status = Path(program).stat() if program else None
                digest.update(f"{name} {program} {status and (status.st_size, status.st_mtime_ns)}\n".encode())
            self._compilers[path] = digest.hexdigest()
        return self._compilers[path]


def point_home(folder: Path, seal: Seal) -> None:
    """Have the text files of a copied folder name the copy wherever they name the folder that was kept.

    Programs keep absolute paths of their own files: Triton those of each kernel (``__grp__*.json``), and vLLM those of
    what torch compiled (``vllm_compile_cache.py``; 0.25.1 does not start where they are gone,
    https://github.com/vllm-project/vllm/issues/52154). A copy without this would compile anew, or read what is in
    another side's folder. Binary files stay as they are, and so do the times of all.

    Args:
        folder: The copy.
        seal: Of what it is a copy of.

    Raises:
        OSError: A file cannot be read or written.
    """
    home = seal.home.encode()
    names = re.compile(re.escape(home) + rb"(?![\w.-])")
    for name, file in seal.files.items():
        if file.size > _MOST_TEXT:
            continue
        with os.fdopen(os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), "r+b") as stream:
            content = stream.read(_MOST_TEXT)
            if _is_text(content) and names.search(content):
                stream.seek(0)
                stream.write(names.sub(lambda _: os.fsencode(folder), content))
                stream.truncate()
                stream.flush()
                os.utime(stream.fileno(), ns=(file.mtime_ns, file.mtime_ns))


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _workload(cell: Cell) -> str:
    """What the shapes depend on for which an engine compiles."""
    return digest_of(cell.workload.model_dump(mode="json"))
