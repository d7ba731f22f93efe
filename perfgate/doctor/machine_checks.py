"""``perfgate doctor``: can this machine measure, and if not, what fixes it.

Everything is looked at from where engines will run: the same environment, interpreters and folders. Nothing is changed:
no clock is locked, no process ended, no lease undone, and what is made to try a folder or a cgroup is removed again.
While programs use the GPUs (``--deep``) it holds them as a run does. Without a GPU its checks are skipped, and so are
those of scenarios and subjects where none is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from perfgate.capture.engine import allowed_environment, engine_settings, find_subject, subject_environment
from perfgate.doctor import profilers
from perfgate.doctor.diagnosis import Check, Diagnosis, Finding
from perfgate.doctor.folders import RUNS_FOLDER, STATE_FOLDER, check_disk, check_folder
from perfgate.doctor.gpu_checks import check_gpus
from perfgate.doctor.profilers import Interpreter, run_probe
from perfgate.errors import InterruptedRunError
from perfgate.machine.cgroup import why_none
from perfgate.machine.cpu_load import look_at_cores
from perfgate.machine.fingerprint import Gpu
from perfgate.machine.locks import CPU, hold_devices, holder_of, state_folder
from perfgate.metrics.sides import Side
from perfgate.scenario.declaration import LoadedScenario, model_folder
from perfgate.scenario.subject import Subject
from perfgate.units import gib

LOW_MEMORY_BYTES = 8 * 1024**3
IMPORT_TIMEOUT_S = 120.0
BUSY_WAIT_S = 1.0
"""GPUs that a run holds longer are not waited for: it may take hours."""
WEIGHTS = ("*.safetensors", "*.bin")

PROCESSES = Check("processes", "What a trial leaves running disturbs the next one; a cgroup ends all of it at once.")
CPU_IDLE = Check("cpu-idle", "What runs beside a measurement slows and spreads its trials.")
RUNNING = Check("running", "One run at a time measures on a GPU, or on the CPU: another one waits for its end.")
MEMORY = Check("memory", "An engine passes its weights through the host's memory.")
MODEL = Check("model", "Engines get no token and may get no network: a model is fetched before it is measured.")
SUBJECT = Check("subject", "Each trial imports torch and vllm by the subject's interpreter, as is done here.")

_NAME_SUBJECT = "Name a build: --base python=..., or [subjects.base] in perfgate.toml."


def diagnose(
    scenarios: Sequence[LoadedScenario],
    subjects: Mapping[Side, Subject],
    runs: Path,
    *,
    deep: bool,
    progress: Callable[[str], None],
) -> Diagnosis:
    """Look at this machine."""
    environment = allowed_environment(os.environ)
    gpus, findings = check_gpus(scenarios, environment)
    with tempfile.TemporaryDirectory(prefix="perfgate-doctor-") as scratch:
        bench = _Bench(Path(scratch), progress)
        programs = (profilers.NSYS, profilers.NCU)
        findings += [profilers.check_presence(check, environment, bench.folder(), gpu=bool(gpus)) for check in programs]
        findings += [profilers.check_counters(), *_check_folders(runs), check_processes(), check_memory(scenarios)]
        findings += [check_running([gpu.uuid for gpu in gpus] or [CPU]), check_load(gpu=bool(gpus))]
        findings += [_check_model(loaded, {**environment, **loaded.scenario.engine.env}) for loaded in scenarios]
        findings += [] if scenarios else [MODEL.skipped("no scenario named")]
        named = _interpreters(scenarios, subjects, environment, bench.folder())
        findings += [bench.check_subject(subject, interpreter) for subject, interpreter in named]
        findings += [] if subjects else [SUBJECT.skipped("no subject named", _NAME_SUBJECT)]
        if deep:
            python = Interpreter("perfgate's own interpreter", sys.executable, environment)
            present = [interpreter for subject, interpreter in named if find_subject(subject) is None]
            findings += bench.try_profilers(present if subjects else [python], gpus)
    return Diagnosis(deep=deep, findings=tuple(findings))


class _Bench:
    """Where programs are tried: each in an empty folder of its own, announced before it starts."""

    def __init__(self, scratch: Path, progress: Callable[[str], None]) -> None:
        self._scratch = scratch
        self._progress = progress

    def folder(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def check_subject(self, subject: Subject, interpreter: Interpreter) -> Finding:
        """Whether the interpreter imports what a trial does."""
        missing = find_subject(subject)
        if missing is not None:
            return SUBJECT.failed(f"{interpreter.name}: {missing.text}", "Check python= and path= of that subject.")
        self._progress(f"importing torch and vllm by {interpreter}")
        ran = run_probe("import", interpreter, self.folder(), IMPORT_TIMEOUT_S)
        if ran.status == 0 and ran.answer is not None:
            versions = ", ".join(f"{name} {version}" for name, version in sorted(ran.answer.items()))
            return SUBJECT.ok(f"{interpreter}: {versions}")
        how = f"no end within {IMPORT_TIMEOUT_S:g} s" if ran.status is None else f"status {ran.status}"
        return SUBJECT.failed(
            f"{interpreter} cannot import torch and vllm: {how}\n{ran.end}",
            f"{interpreter.python} -m pip install vllm; path= puts folders in front of what is installed.",
        )

    def try_profilers(self, interpreters: Sequence[Interpreter], gpus: Sequence[Gpu]) -> list[Finding]:
        """Run nsys and ncu on a tiny program of each interpreter, beside no run: it would spoil that one's trials."""
        tried = (profilers.NSYS_TRACE, profilers.NCU_COUNT)
        if not interpreters:
            return [check.skipped("no subject's interpreter is there", "Fix the subjects first.") for check in tried]
        with contextlib.ExitStack() as held:
            try:
                if gpus:
                    uuids, until_s = [gpu.uuid for gpu in gpus], time.monotonic() + BUSY_WAIT_S
                    held.enter_context(hold_devices(uuids, "perfgate doctor --deep", self._progress, until_s))
            except InterruptedRunError as error:
                return [check.warning(f"not tried: {error.text}", "Wait for that run.") for check in tried]
            except OSError as error:
                text = f"not tried: the GPUs cannot be held: {error}"
                return [check.warning(text, "See the check state-folder.") for check in tried]
            findings = []
            for interpreter in interpreters:
                self._progress(f"tracing a tiny program of {interpreter} with nsys")
                findings.append(profilers.try_nsys(interpreter, self.folder(), gpu=bool(gpus)))
                if gpus:
                    self._progress(f"counting a kernel of {interpreter} with ncu")
                findings.append(profilers.try_ncu(interpreter, self.folder(), gpu=bool(gpus)))
            return findings


def check_processes() -> Finding:
    """Whether each trial has a cgroup; without one its processes are sought below their subreaper."""
    why = why_none()
    if not why:
        return PROCESSES.ok("cgroup: what a trial starts ends with it, however fast it forks")
    return PROCESSES.warning(
        f"subreaper: a trial fails if it leaves a daemon that forks too fast to be found. No cgroup: {why}",
        "systemd-run --user --scope -p Delegate=yes perfgate run ...; on a runner, Delegate=yes in its service.",
    )


def check_running(devices: Sequence[str]) -> Finding:
    """Whether another run measures on these devices now."""
    try:
        held = [f"{name} is in use by {holder}" for name in devices if (holder := holder_of(name))]
    except OSError as error:
        return RUNNING.failed(f"{error.filename} cannot be read: {error.strerror}", "See the check state-folder.")
    remedy = "Wait for that run: one that is started now does so by itself."
    return RUNNING.warning("; ".join(held), remedy) if held else RUNNING.ok("no other run is measuring here")


def check_load(*, gpu: bool) -> Finding:
    """Whether something else uses the cores that an engine would use."""
    if (load := look_at_cores()) is None:
        return CPU_IDLE.skipped("this kernel does not count what its cores do")
    remedy = "Wait for it, or end what is yours; top shows all that runs."
    return CPU_IDLE.warning(str(load), remedy) if load.disturbs(gpu=gpu) else CPU_IDLE.ok(str(load))


def check_memory(scenarios: Sequence[LoadedScenario]) -> Finding:
    """Whether the host has memory left for an engine and the largest of the scenarios' models."""
    free = psutil.virtual_memory().available
    weights = max((_weights_bytes(folder) for folder in map(model_folder, scenarios) if folder), default=0)
    text = f"{gib(free)} of the host's memory available" + (f", {gib(weights)} of weights" if weights else "")
    remedy = "End what else runs on this host, or take one with more memory."
    return MEMORY.warning(text, remedy) if free < max(LOW_MEMORY_BYTES, weights) else MEMORY.ok(text)


def _check_folders(runs: Path) -> Iterator[Finding]:
    try:
        state = state_folder()
    except OSError as error:
        remedy = "Make it writable for this user, or name another in PERFGATE_STATE."
        yield STATE_FOLDER.failed(f"{error.filename} cannot be made: {error.strerror}", remedy)
    else:
        yield check_folder(STATE_FOLDER, state)
    yield check_folder(RUNS_FOLDER, runs)
    yield check_disk(runs)


def _check_model(loaded: LoadedScenario, environment: Mapping[str, str]) -> Finding:
    name, model, folder = loaded.scenario.name, loaded.scenario.engine.model, model_folder(loaded)
    if model.config is not None:
        return MODEL.ok(f"{name}: {folder}, dummy weights")
    if folder is not None:
        if size := _weights_bytes(folder):
            return MODEL.ok(f"{name}: {folder}, {gib(size)} of weights")
        return MODEL.failed(f"{name}: {folder} holds no weights ({', '.join(WEIGHTS)})", f"Put them into {folder}.")
    fetch = f"hf download {model.hub} --revision {model.revision}"
    snapshots = hub_cache(environment) / f"models--{str(model.hub).replace('/', '--')}" / "snapshots"
    snapshot = next(iter(sorted(snapshots.glob(f"{model.revision}*"))), None)
    if snapshot is None:
        return MODEL.warning(f"{name}: {model.hub} at {model.revision} is not in {hub_cache(environment)}", fetch)
    if not (snapshot / "config.json").exists() or not (size := _weights_bytes(snapshot)):
        return MODEL.warning(f"{name}: {snapshot} is not complete: fetching was broken off", fetch)
    return MODEL.ok(f"{name}: {model.hub} at {model.revision}, {gib(size)} of weights")


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models: ``HF_HUB_CACHE``, else ``hub`` in ``HF_HOME``, else in the user's cache."""
    home = environment.get("HF_HOME", "~/.cache/huggingface")
    return Path(environment.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def _weights_bytes(folder: Path) -> int:
    """Size of the weights in a folder; those whose link leads nowhere count as none."""
    return sum(file.stat().st_size for pattern in WEIGHTS for file in folder.glob(pattern) if file.exists())


def _interpreters(
    scenarios: Sequence[LoadedScenario], subjects: Mapping[Side, Subject], environment: Mapping[str, str], cache: Path
) -> list[tuple[Subject, Interpreter]]:
    """Each subject under each scenario's variables; what would be looked at twice comes once, under both names."""
    settings = [loaded.scenario.engine.env for loaded in scenarios] or [{}]
    named: dict[tuple[str, str], tuple[Subject, Interpreter]] = {}
    for side, subject in subjects.items():
        for setting in settings if subject.url is None else ():
            variables = subject_environment({**environment, **engine_settings(cache), **setting}, subject)
            same = (subject.python, json.dumps(variables, sort_keys=True))
            names = [named[same][1].name] if same in named else []
            name = " and ".join(dict.fromkeys([*names, side]))
            named[same] = (subject, Interpreter(name, subject.python, variables))
    return list(named.values())
