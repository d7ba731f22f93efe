"""A machine with GPUs that are not there: what nvidia-ml-py answers, out of a file that tests edit.

The state is a JSON file named by ``$FAKE_NVML``, so that it outlives a killed process, is shared by several, and can be
changed while perfgate runs; it is read afresh at each call. Without the variable or the file there is no driver. In a
test the fixture ``fake_nvml`` puts this module in NVML's place; another process gets it with
:attr:`FakeMachine.environment`, which puts ``tests/standins`` (where it is called pynvml) on its path.

Only what :mod:`perfgate.machine.nvml` calls is here. The figures are those an idle H200 gave under driver 580.
"""

# ruff: noqa: D103, N801, N802, N818 (names and meanings are NVML's)

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from filelock import FileLock

STATE = "FAKE_NVML"
HERE = Path(__file__).parent

State = dict[str, Any]

GPU: State = {
    "name": "NVIDIA H200",
    "capability": [9, 0],
    "memory_bytes": 150754820096,
    "memory_reserved_bytes": 644939776,  # what an idle GPU shows as used; the memory of its processes comes on top
    "ecc": 1,
    "mig": 0,
    "pcie_generation": 5,
    "pcie_width": 16,
    "power_limit_mw": 700000,
    "vbios": "96.00.A5.00.1A",
    "persistence": 1,
    "numa_node": 0,
    "processes": [],  # {"pid": 4711, "memory_bytes": 2**30}; a pid that does not exist here is the host's
    "sm_mhz": 1980,  # what it shows under no lock
    "memory_mhz": 3201,
    "power_cap_mhz": None,  # the most that power allows: a lock above it is not held, and the reason is shown
    "locked": {"sm_mhz": None, "memory_mhz": None},
    # SM clocks by memory clock: first, last, step.
    "supported_clocks_mhz": {"3201": [345, 1980, 15], "2201": [345, 1980, 15]},
    "reasons": 0,  # beside those of the lock and of the power cap
    "slowdown_ns": {"269": 0, "270": 0, "271": 0},  # by number of the field
    "power_mw": 82126,
    "energy_mj": 4995413,  # at energy_at_s; it grows by the power
    "energy_at_s": 0.0,
    "temperature_c": 42,
    "memory_temperature_c": 43,
    "utilisation_percent": 0,
    "permission": True,  # to set clocks
    "supported": True,  # locking, that is
    "lost": False,
    "errors": {},  # {"nvmlDeviceGetMigMode": 3}: what a function, or a "field 186", fails with; HANG never returns
}
"""A GPU as it is built; ``FakeMachine.build`` and ``FakeGpu.update`` change any of these."""

HANG = "hang"

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_UNKNOWN = 999
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
_UNSIGNED, _UNSIGNED_LONG_LONG = 1, 3


class NVMLError(Exception):
    """As nvidia-ml-py has it: ``value`` is NVML's return code, and each code has a class of its own."""

    code: ClassVar[int] = NVML_ERROR_UNKNOWN

    def __init__(self, value: int | None = None) -> None:
        self.value = self.code if value is None else value

    def __str__(self) -> str:
        """The class in words."""
        return type(self).__name__.removeprefix("NVMLError_") or f"NVML Error with code {self.value}"


class NVMLError_Uninitialized(NVMLError):
    """``nvmlInit`` was not called."""

    code = NVML_ERROR_UNINITIALIZED


class NVMLError_InvalidArgument(NVMLError):
    """A value that cannot be."""

    code = NVML_ERROR_INVALID_ARGUMENT


class NVMLError_NotSupported(NVMLError):
    """This GPU cannot."""

    code = NVML_ERROR_NOT_SUPPORTED


class NVMLError_NoPermission(NVMLError):
    """This user may not."""

    code = NVML_ERROR_NO_PERMISSION


class NVMLError_NotFound(NVMLError):
    """No GPU of that name."""

    code = NVML_ERROR_NOT_FOUND


class NVMLError_DriverNotLoaded(NVMLError):
    """The library is there, the driver is not."""

    code = NVML_ERROR_DRIVER_NOT_LOADED


class NVMLError_LibraryNotFound(NVMLError):
    """No driver is installed."""

    code = NVML_ERROR_LIBRARY_NOT_FOUND


class NVMLError_FunctionNotFound(NVMLError):
    """The driver is older than the function."""

    code = NVML_ERROR_FUNCTION_NOT_FOUND


class NVMLError_GpuIsLost(NVMLError):
    """The GPU fell off the bus."""

    code = NVML_ERROR_GPU_IS_LOST


class NVMLError_ResetRequired(NVMLError):
    """The GPU wants a reset."""

    code = NVML_ERROR_RESET_REQUIRED


class NVMLError_Unknown(NVMLError):
    """Anything else."""

    code = NVML_ERROR_UNKNOWN


def _error(code: int) -> NVMLError:
    return next(kind for kind in NVMLError.__subclasses__() if kind.code == code)(code)


# --- the state, for tests


class FakeMachine:
    """The state file, to be built and edited.

    Args:
        file: The state file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    @classmethod
    def build(cls, file: Path, *gpus: State, **facts: Any) -> FakeMachine:
        """A machine with these GPUs: each what differs from :data:`GPU`; one plain GPU if none is given.

        Args:
            file: Where its state is kept.
            gpus: Without a ``uuid`` they get one that ends in their number.
            facts: Of the machine: ``driver``, ``cuda`` (13000 for 13.0), ``errors``.
        """
        built = [
            {"uuid": fake_uuid(n), **GPU, "energy_at_s": time.time(), **gpu} for n, gpu in enumerate(gpus or ({},))
        ]
        state = {"driver": "580.159.04", "cuda": 13000, "errors": {}, "calls": [], **facts, "gpus": built}
        file.write_text(json.dumps(state))
        return cls(file)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that put a process of its own on this machine."""
        return {STATE: str(self.file), "PYTHONPATH": str(HERE / "standins")}

    @property
    def state(self) -> State:
        """Everything, as it is now."""
        return _read(self.file)

    @property
    def calls(self) -> list[list[Any]]:
        """The setters called since it was built, oldest first: function, UUID, MHz; refused ones are not listed."""
        return list(self.state["calls"])

    def gpu(self, index: int = 0) -> FakeGpu:
        """One of its GPUs."""
        return FakeGpu(self, index)

    def update(self, **facts: Any) -> None:
        """Change facts of the machine: ``driver``, ``cuda``, ``errors``."""
        with _changed(self.file) as state:
            state.update(facts)


class FakeGpu:
    """One GPU of a :class:`FakeMachine`."""

    def __init__(self, machine: FakeMachine, index: int) -> None:
        self._machine = machine
        self._index = index

    def __getitem__(self, fact: str) -> Any:
        """A fact as it is now."""
        return self._machine.state["gpus"][self._index][fact]

    @property
    def uuid(self) -> str:
        """Its name for NVML."""
        return str(self["uuid"])

    @property
    def locked(self) -> tuple[int | None, int | None]:
        """The SM and the memory clock that it was asked to hold, in MHz."""
        return self["locked"]["sm_mhz"], self["locked"]["memory_mhz"]

    def update(self, **facts: Any) -> None:
        """Change facts of :data:`GPU`."""
        unknown = set(facts) - set(GPU) - {"uuid"}
        assert not unknown, f"no GPU has {unknown}"
        with _changed(self._machine.file) as state:
            state["gpus"][self._index].update(facts)

    def lock(self, sm_mhz: int | None, memory_mhz: int | None = None) -> None:
        """Hold clocks as root does, whatever ``permission`` says; ``None`` releases."""
        self.update(locked={"sm_mhz": sm_mhz, "memory_mhz": memory_mhz})


def fake_uuid(index: int) -> str:
    """A UUID that no GPU has."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def _read(file: Path) -> State:
    state: State = json.loads(file.read_text())
    return state


@contextlib.contextmanager
def _changed(file: Path) -> Iterator[State]:
    """The state, written back whole when the block ends: a process killed meanwhile has changed nothing."""
    with FileLock(f"{file}.lock"):
        state = _read(file)
        yield state
        part = file.with_name(f"{file.name}.part")
        part.write_text(json.dumps(state))
        part.replace(file)


# --- NVML's functions

_clients = 0


def nvmlInit() -> None:
    global _clients  # noqa: PLW0603 (NVML counts its clients too)
    if STATE not in os.environ or not _file().exists():
        raise NVMLError_LibraryNotFound
    _check("nvmlInit", _read(_file()))
    _clients += 1


def nvmlShutdown() -> None:
    global _clients  # noqa: PLW0603
    _machine("nvmlShutdown")
    _clients -= 1


def nvmlSystemGetDriverVersion() -> str:
    return str(_machine("nvmlSystemGetDriverVersion")["driver"])


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return int(_machine("nvmlSystemGetCudaDriverVersion_v2")["cuda"])


def nvmlSystemGetConfComputeState() -> SimpleNamespace:
    machine = _machine("nvmlSystemGetConfComputeState")
    if machine.get("confidential") is None:
        raise NVMLError_NotSupported
    return SimpleNamespace(ccFeature=int(machine["confidential"]))


def nvmlDeviceGetCount() -> int:
    return len(_machine("nvmlDeviceGetCount")["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    gpus = _machine("nvmlDeviceGetHandleByIndex")["gpus"]
    if not 0 <= index < len(gpus):
        raise NVMLError_InvalidArgument
    if gpus[index]["lost"]:
        raise NVMLError_GpuIsLost
    _check("nvmlDeviceGetHandleByIndex", gpus[index])
    return str(gpus[index]["uuid"])


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if uuid not in {gpu["uuid"] for gpu in _machine("nvmlDeviceGetHandleByUUID")["gpus"]}:
        raise NVMLError_NotFound
    return uuid


def _file() -> Path:
    return Path(os.environ[STATE])


def _check(name: str, bearer: Mapping[str, Any]) -> None:
    if bearer["errors"].get(name) == HANG:
        while True:
            signal.pause()
    if name in bearer["errors"]:
        raise _error(bearer["errors"][name])


def _machine(name: str) -> State:
    if not _clients:
        raise NVMLError_Uninitialized
    state = _read(_file())
    _check(name, state)
    return state


def _find(state: State, handle: str, name: str) -> State:
    gpu: State = next(gpu for gpu in state["gpus"] if gpu["uuid"] == handle)
    if gpu["lost"]:
        raise NVMLError_GpuIsLost
    _check(name, gpu)
    return gpu


def _getter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a GPU's state becomes one of its handle."""

    @functools.wraps(function)
    def get(handle: str, *words: Any) -> Any:
        return function(_find(_machine(function.__name__), handle, function.__name__), *words)

    return get


def _setter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Likewise, but it changes the state, and may only with permission; what it did is logged."""

    @functools.wraps(function)
    def change(handle: str, *words: Any) -> None:
        _machine(function.__name__)
        with _changed(_file()) as state:
            gpu = _find(state, handle, function.__name__)
            if not gpu["supported"]:
                raise NVMLError_NotSupported
            if not gpu["permission"]:
                raise NVMLError_NoPermission
            function(gpu, *words)
            state["calls"].append([function.__name__, handle, *words])

    return change


@_getter
def nvmlDeviceGetUUID(gpu: State) -> str:
    return str(gpu["uuid"])


@_getter
def nvmlDeviceGetName(gpu: State) -> str:
    return str(gpu["name"])


@_getter
def nvmlDeviceGetCudaComputeCapability(gpu: State) -> list[int]:
    return list(gpu["capability"])


@_getter
def nvmlDeviceGetMemoryInfo(gpu: State) -> SimpleNamespace:
    used = gpu["memory_reserved_bytes"] + sum(process["memory_bytes"] or 0 for process in gpu["processes"])
    return SimpleNamespace(total=gpu["memory_bytes"], used=used, free=gpu["memory_bytes"] - used)


@_getter
def nvmlDeviceGetEccMode(gpu: State) -> list[int]:
    return [gpu["ecc"], gpu["ecc"]]


@_getter
def nvmlDeviceGetMigMode(gpu: State) -> list[int]:
    return [gpu["mig"], gpu["mig"]]


@_getter
def nvmlDeviceGetPersistenceMode(gpu: State) -> int:
    return int(gpu["persistence"])


@_getter
def nvmlDeviceGetMaxPcieLinkGeneration(gpu: State) -> int:
    return int(gpu["pcie_generation"])


@_getter
def nvmlDeviceGetCurrPcieLinkWidth(gpu: State) -> int:
    return int(gpu["pcie_width"])


@_getter
def nvmlDeviceGetEnforcedPowerLimit(gpu: State) -> int:
    return int(gpu["power_limit_mw"])


@_getter
def nvmlDeviceGetVbiosVersion(gpu: State) -> str:
    return str(gpu["vbios"])


@_getter
def nvmlDeviceGetNumaNodeId(gpu: State) -> int:
    return int(gpu["numa_node"])


@_getter
def nvmlDeviceGetUtilizationRates(gpu: State) -> SimpleNamespace:
    return SimpleNamespace(gpu=gpu["utilisation_percent"], memory=0)


@_getter
def nvmlDeviceGetClockInfo(gpu: State, kind: int) -> int:
    if kind == NVML_CLOCK_MEM:
        return int(gpu["locked"]["memory_mhz"] or gpu["memory_mhz"])
    return _sm_mhz(gpu)


def _sm_mhz(gpu: State) -> int:
    wanted = gpu["locked"]["sm_mhz"] or gpu["sm_mhz"]
    return int(min(wanted, gpu["power_cap_mhz"] or wanted))


@_getter
def nvmlDeviceGetCurrentClocksEventReasons(gpu: State) -> int:
    locked = 0x2 if gpu["locked"]["sm_mhz"] else 0
    capped = 0x4 if _sm_mhz(gpu) < (gpu["locked"]["sm_mhz"] or gpu["sm_mhz"]) else 0
    return int(gpu["reasons"]) | locked | capped


@_getter
def nvmlDeviceGetPowerUsage(gpu: State) -> int:
    return int(gpu["power_mw"])


@_getter
def nvmlDeviceGetTemperatureV(gpu: State, _sensor: int) -> int:
    return int(gpu["temperature_c"])


@_getter
def nvmlDeviceGetTemperature(gpu: State, _sensor: int) -> int:
    return int(gpu["temperature_c"])


@_getter
def nvmlDeviceGetFieldValues(gpu: State, numbers: Sequence[int]) -> list[SimpleNamespace]:
    return [_field(gpu, number) for number in numbers]


def _field(gpu: State, number: int) -> SimpleNamespace:
    energy_mj = gpu["energy_mj"] + (time.time() - gpu["energy_at_s"]) * gpu["power_mw"]
    values = {82: gpu["memory_temperature_c"], 83: int(energy_mj), 186: gpu["power_mw"]}
    value = values.get(number, gpu["slowdown_ns"].get(str(number)))
    missing = NVML_ERROR_NOT_SUPPORTED if value is None else NVML_SUCCESS
    member, kind = ("uiVal", _UNSIGNED) if number in (82, 186) else ("ullVal", _UNSIGNED_LONG_LONG)
    return SimpleNamespace(
        fieldId=number,
        nvmlReturn=gpu["errors"].get(f"field {number}", missing),
        valueType=kind,
        value=SimpleNamespace(**{member: value}),
    )


@_getter
def nvmlDeviceGetComputeRunningProcesses(gpu: State) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=one["pid"], usedGpuMemory=one["memory_bytes"]) for one in gpu["processes"]]


@_getter
def nvmlDeviceGetSupportedMemoryClocks(gpu: State) -> list[int]:
    return sorted(map(int, gpu["supported_clocks_mhz"]), reverse=True)


@_getter
def nvmlDeviceGetSupportedGraphicsClocks(gpu: State, memory_mhz: int) -> list[int]:
    first, last, step = gpu["supported_clocks_mhz"][str(memory_mhz)]
    return list(range(last, first - 1, -step))


@_setter
def nvmlDeviceSetGpuLockedClocks(gpu: State, _least: int, most: int) -> None:
    gpu["locked"]["sm_mhz"] = most


@_setter
def nvmlDeviceSetMemoryLockedClocks(gpu: State, _least: int, most: int) -> None:
    gpu["locked"]["memory_mhz"] = most


@_setter
def nvmlDeviceResetGpuLockedClocks(gpu: State) -> None:
    gpu["locked"]["sm_mhz"] = None


@_setter
def nvmlDeviceResetMemoryLockedClocks(gpu: State) -> None:
    gpu["locked"]["memory_mhz"] = None
