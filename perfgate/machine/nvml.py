"""NVIDIA's GPUs, by NVML: what they are, what they do now, who uses them, and the two calls that hold their clocks.

perfgate uses NVML here alone, and nothing here decides anything. Every call names its GPU by UUID. What a
GPU or driver does not offer reads as ``None``; what goes wrong is a :class:`GpuError` with its reason code. No call is
used that CUDA 14 takes away, but for the temperature on drivers before 570, which know the old name only.

A driver in trouble may not return from a call. So all calls are made in a process of their own
(:mod:`perfgate.machine.forked`) and given up after a while: the measurement ends then, and nothing waits for the GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import pynvml

from perfgate.machine.accelerator import GpuError, GpuProcess, NothingDoneError
from perfgate.machine.fingerprint import Gpu
from perfgate.machine.forked import Forked, NoAnswerError
from perfgate.machine.telemetry import Sample

_T = TypeVar("_T")
_P = ParamSpec("_P")

LIMIT_S: Final = 10.0
"""A call of NVML takes milliseconds; one that locks clocks, or comes first after a pause, up to seconds."""
START_LIMIT_S: Final = 60.0
"""Without persistence mode the first connection loads the firmware of every GPU."""

SLOWDOWN_COUNTERS: Final[Mapping[str, int]] = {"software-thermal": 269, "hardware-thermal": 270, "power-brake": 271}
"""NVML fields that count the nanoseconds a reason held the clock down (``NVML_FI_DEV_CLOCKS_EVENT_REASON_*``)."""

_MEMORY_TEMPERATURE, _ENERGY, _INSTANT_POWER = 82, 83, 186
_SENSOR_GPU = 0
_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's union that holds its value, by ``nvmlValueType_t``."""


class NoDriverError(GpuError):
    """There is no NVIDIA driver here."""


def _there(method: Callable[Concatenate[Nvml, _P], _T]) -> Callable[Concatenate[Nvml, _P], _T]:
    """A method that runs in the process of the calls.

    Raises:
        GpuError: ``gpu-unreadable``: the driver does not return from it, or did not from an earlier one.
    """

    @functools.wraps(method)
    def ask(self: Nvml, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        if self._process is None:
            return method(self, *arguments, **named)
        try:
            answer: _T = self._process.call(method.__name__, arguments, named, self._limit_s)
        except NoAnswerError as error:
            raise GpuError(f"the NVIDIA driver does not answer: {error}", code="gpu-unreadable") from error
        return answer

    return ask


class Nvml:
    """A connection to the driver, in a process of its own; a context manager.

    ``driver`` is its version, and ``cuda`` the newest CUDA that it offers, like ``13.0``.

    Raises:
        NoDriverError: There is no driver. See :func:`connect`.
        GpuError: ``gpu-unreadable``: it does not answer.
    """

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._process: Forked | None = None  # what the copy of this object there finds
        self._limit_s = START_LIMIT_S
        self._process = Forked(self)
        try:
            self.driver, self.cuda = self._start()
        except BaseException:
            self._process.close()
            raise
        self._limit_s = LIMIT_S

    def __enter__(self) -> Self:
        """Return itself, connected."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection; it ends with its process."""
        if self._process is not None:
            self._process.close()

    @_there
    def _start(self) -> tuple[str, str]:
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
            raise NoDriverError(f"cannot start NVML: {error}", code="gpu-unreadable") from error
        except pynvml.NVMLError as error:
            raise _named(error, "start NVML", "") from error
        cuda = int(_ask("read CUDA's version", pynvml.nvmlSystemGetCudaDriverVersion_v2))
        driver = str(_ask("read the driver's version", pynvml.nvmlSystemGetDriverVersion))
        return driver, f"{cuda // 1000}.{cuda % 1000 // 10}"

    def gpus(self, environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
        """GPUs that ``CUDA_VISIBLE_DEVICES`` admits, in CUDA's order.

        Entries may be indices or (beginnings of) UUIDs; like CUDA, the list ends at the first entry that names no GPU.
        Indices follow the PCI bus, which is CUDA's order where ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or all GPUs are alike.

        NVML also counts GPUs that this user may not open (so its documentation of ``nvmlDeviceGetCount_v2``): they are
        left out. Others can be named by UUID in spite of them and of GPUs that fail. Whether CUDA counts
        them is not documented, so an index after one is refused rather than taken for the wrong GPU.

        Raises:
            GpuError: A GPU that is admitted cannot be read, or one that cannot be read may be admitted.
        """
        return tuple(self.facts(uuid) for uuid in self._admitted(environment.get("CUDA_VISIBLE_DEVICES")))

    @_there
    def _admitted(self, visible: str | None) -> list[str]:
        count = _ask("count the GPUs", pynvml.nvmlDeviceGetCount)
        return _admitted([_identify(number) for number in range(count)], visible)

    @_there
    def architecture(self, uuid: str) -> int | None:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        version = self._read(uuid, pynvml.nvmlDeviceGetCudaComputeCapability)
        return None if version is None else 10 * int(version[0]) + int(version[1])

    @_there
    def facts(self, uuid: str) -> Gpu:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        read = functools.partial(self._read, uuid)
        ecc, mig = read(pynvml.nvmlDeviceGetEccMode), read(pynvml.nvmlDeviceGetMigMode)
        persistence = read(pynvml.nvmlDeviceGetPersistenceMode)
        memory = read(pynvml.nvmlDeviceGetMemoryInfo)
        return Gpu(
            name=str(_ask("read the name", pynvml.nvmlDeviceGetName, self._handle(uuid))),
            uuid=uuid,
            memory_bytes=memory and int(memory.total),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            pcie_generation=read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
            pcie_width=read(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
            confidential=_confidential(),
            power_limit_mw=read(pynvml.nvmlDeviceGetEnforcedPowerLimit),
            vbios=read(pynvml.nvmlDeviceGetVbiosVersion),
            persistence=None if persistence is None else bool(persistence),
            numa_node=read(pynvml.nvmlDeviceGetNumaNodeId),
        )

    @_there
    def sample(self, uuid: str) -> Sample:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        read = functools.partial(self._read, uuid)
        utilisation = read(pynvml.nvmlDeviceGetUtilizationRates)
        fields = self._fields(uuid, (_MEMORY_TEMPERATURE, _ENERGY, _INSTANT_POWER, *SLOWDOWN_COUNTERS.values()))
        power_mw, temperature_c = fields.get(_INSTANT_POWER), read(pynvml.nvmlDeviceGetTemperatureV, _SENSOR_GPU)
        return Sample(
            sm_mhz=read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            memory_mhz=read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            # Without the field of the moment's power the driver's one-second average must do; before driver 570 the
            # temperature has its old name alone.
            power_mw=read(pynvml.nvmlDeviceGetPowerUsage) if power_mw is None else power_mw,
            temperature_c=(
                read(pynvml.nvmlDeviceGetTemperature, _SENSOR_GPU) if temperature_c is None else temperature_c
            ),
            memory_temperature_c=fields.get(_MEMORY_TEMPERATURE),
            utilisation_percent=utilisation and int(utilisation.gpu),
            reasons=read(pynvml.nvmlDeviceGetCurrentClocksEventReasons),
            energy_mj=fields.get(_ENERGY),
            slowdown_ns={name: fields[number] for name, number in SLOWDOWN_COUNTERS.items() if number in fields},
        )

    @_there
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        contexts = self._read(uuid, pynvml.nvmlDeviceGetComputeRunningProcesses) or ()
        return tuple(sorted((GpuProcess(p.pid, p.usedGpuMemory) for p in contexts), key=lambda process: process.pid))

    @_there
    def memory_used_bytes(self, uuid: str) -> int | None:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        memory = self._read(uuid, pynvml.nvmlDeviceGetMemoryInfo)
        return memory and int(memory.used)

    @_there
    def supported_clocks_mhz(self, uuid: str) -> Mapping[int, Sequence[int]]:
        """See :class:`~perfgate.machine.accelerator.Accelerators`."""
        read = functools.partial(self._read, uuid)
        memory = read(pynvml.nvmlDeviceGetSupportedMemoryClocks) or ()
        return {mhz: tuple(read(pynvml.nvmlDeviceGetSupportedGraphicsClocks, mhz) or ()) for mhz in memory}

    @_there
    def lock_clocks(self, uuid: str, sm_mhz: int, memory_mhz: int | None) -> None:
        """See :class:`~perfgate.machine.accelerator.Accelerators`; NVML cannot tell what is locked."""
        handle = self._handle(uuid)
        lock = functools.partial(_ask, gpu=uuid, refusal=NothingDoneError)
        lock(f"lock the SM clock at {sm_mhz} MHz", pynvml.nvmlDeviceSetGpuLockedClocks, handle, sm_mhz, sm_mhz)
        if memory_mhz is None:
            return
        try:
            what = f"lock the memory clock at {memory_mhz} MHz"
            lock(what, pynvml.nvmlDeviceSetMemoryLockedClocks, handle, memory_mhz, memory_mhz)
        except GpuError:
            _ask("release the SM clock", pynvml.nvmlDeviceResetGpuLockedClocks, handle, gpu=uuid)
            raise

    @_there
    def reset_clocks(self, uuid: str, *, memory: bool) -> None:
        """See :class:`~perfgate.machine.accelerator.Accelerators`; GPUs exist that can hold only the SM clock."""
        handle = self._handle(uuid)
        _ask("release the SM clock", pynvml.nvmlDeviceResetGpuLockedClocks, handle, gpu=uuid)
        if memory:
            _ask("release the memory clock", pynvml.nvmlDeviceResetMemoryLockedClocks, handle, gpu=uuid)

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = _ask("find the GPU", pynvml.nvmlDeviceGetHandleByUUID, uuid, gpu=uuid)
        return self._handles[uuid]

    def _read(self, uuid: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What this GPU answers; ``None`` to what it does not know."""
        handle = self._handle(uuid)
        try:
            return function(handle, *arguments)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
            return None
        except pynvml.NVMLError as error:
            raise _named(error, function.__name__.removeprefix("nvmlDeviceGet"), uuid) from error

    def _fields(self, uuid: str, numbers: Sequence[int]) -> dict[int, int]:
        """The values of those fields that the GPU has."""
        return {
            field.fieldId: int(getattr(field.value, _VALUE_FIELDS[field.valueType]))
            for field in self._read(uuid, pynvml.nvmlDeviceGetFieldValues, list(numbers)) or ()
            if field.nvmlReturn == pynvml.NVML_SUCCESS
        }


def connect() -> Nvml | None:
    """A connection to the driver; ``None`` on a machine without one, where engines run on the CPU.

    Raises:
        GpuError: ``gpu-unreadable``: there is a driver, and it does not answer.
    """
    try:
        return Nvml()
    except NoDriverError:
        return None


def _confidential() -> bool | None:
    """Whether GPUs compute for a confidential machine; ``None`` where the driver does not tell, whatever it says."""
    try:
        return bool(pynvml.nvmlSystemGetConfComputeState().ccFeature)
    except pynvml.NVMLError:
        return None


def _ask(
    what: str, function: Callable[..., _T], *arguments: Any, gpu: str = "", refusal: type[GpuError] = GpuError
) -> _T:
    """What NVML answers; a call that this user may not make raises ``refusal``."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise _named(error, what, gpu, refusal) from error


def _named(error: pynvml.NVMLError, what: str, gpu: str, refusal: type[GpuError] = GpuError) -> GpuError:
    """NVML's error with our reason code."""
    codes = {
        pynvml.NVML_ERROR_NO_PERMISSION: "clock-no-permission",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "clock-not-supported",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "clock-not-supported",
        pynvml.NVML_ERROR_INVALID_ARGUMENT: "clock-not-supported",
        pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
        pynvml.NVML_ERROR_RESET_REQUIRED: "gpu-lost",
    }
    kind = refusal if error.value == pynvml.NVML_ERROR_NO_PERMISSION else GpuError
    return kind(f"cannot {what}: {error}", where=gpu, code=codes.get(error.value, "gpu-unreadable"))


def _identify(number: int) -> str | GpuError:
    """The UUID of a GPU by its number, or why it cannot be told."""
    try:
        handle = _ask(f"find GPU {number}", pynvml.nvmlDeviceGetHandleByIndex, number)
        return str(_ask(f"read the UUID of GPU {number}", pynvml.nvmlDeviceGetUUID, handle))
    except GpuError as error:
        return error


def _admitted(gpus: Sequence[str | GpuError], visible: str | None) -> list[str]:
    """The UUIDs that ``CUDA_VISIBLE_DEVICES`` admits of these GPUs and of those that cannot be read."""
    uuids = [gpu for gpu in gpus if isinstance(gpu, str)]
    broken = [gpu for gpu in gpus if isinstance(gpu, GpuError)]
    broken = [error for error in broken if not isinstance(error.__cause__, pynvml.NVMLError_NoPermission)]
    if visible is None:
        if broken:
            raise broken[0]
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        matches: list[str] = []
        if entry.isdigit():
            matches = _numbered(gpus, int(entry))
        elif entry.startswith("GPU-"):
            matches = [uuid for uuid in uuids if uuid.startswith(entry)]
            if not matches and broken:  # it may be this one that is meant
                raise broken[0]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


def _numbered(gpus: Sequence[str | GpuError], number: int) -> list[str]:
    """The GPU of that number; none where there are not so many."""
    uuids = []
    for gpu in gpus[: number + 1] if number < len(gpus) else ():
        if isinstance(gpu, GpuError):
            raise GpuError(
                f"which GPU is number {number} cannot be told: {gpu.text}",
                where="CUDA_VISIBLE_DEVICES",
                code=gpu.code if gpu.code == "gpu-lost" else "gpu-unreadable",
                remedy="Name GPUs by UUID there; nvidia-smi -L lists those that can be opened.",
            )
        uuids.append(gpu)
    return uuids[number:]
