"""Second processes of leads in ``research/gpu_states.py``: ``python research/state_companions.py context|nvml``."""

from __future__ import annotations

import ctypes
import json
import sys
import time

HELD_S = 3.0
"""How long a context is kept."""


def be_context() -> None:
    """Make a CUDA context with 1 GiB on the visible GPU, keep it for a while, and end."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(pointer), ctypes.c_size_t(1 << 30))),
    ):
        if status := getattr(cuda, name)(*arguments):
            print(json.dumps({"companion": "context", "failed": f"{name} returned {status}"}), flush=True)
            return
    time.sleep(HELD_S)


def be_nvml() -> None:
    """Read all GPUs of the host a hundred times a second until ended."""
    try:
        import pynvml  # noqa: PLC0415 (may be missing)
    except ImportError as error:
        print(json.dumps({"companion": "nvml", "failed": str(error)}), flush=True)
        return
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    while True:
        for handle in handles:
            pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            pynvml.nvmlDeviceGetPowerUsage(handle)
            pynvml.nvmlDeviceGetUtilizationRates(handle)
            pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        time.sleep(0.01)


if __name__ == "__main__":
    {"context": be_context, "nvml": be_nvml}[sys.argv[1]]()
