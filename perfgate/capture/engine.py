"""An engine as perfgate sees it before it runs: the variables that it gets, the folders of its caches, its GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from perfgate.capture.job import Job
from perfgate.errors import UsageError
from perfgate.machine.temporary_folder import temporary_folder
from perfgate.metrics.trial import Failure
from perfgate.scenario.subject import Builds, Subject

LOG = "engine.log"

ALLOWED = (
    # what any program needs to find files, programs and itself
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR",
    # how this machine loads its libraries and finds its GPUs; some machines run no CUDA program without a preload
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_*",
    # how its fabric must be used
    "NCCL_*", "NVSHMEM_*", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    # where its models lie
    "HF_HOME", "HF_HUB_CACHE",
)  # fmt: skip
"""The variables that reach engines from the shell, by name or pattern: properties of the machine, no preferences.

Left out on purpose: ``VLLM_*``, ``TORCH*``, ``OMP_*`` and the like change what is measured, so they belong in the
scenario or the subject, where their values are recorded; tokens and proxies are secrets, and models are fetched before.
"""


def allowed_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The part of ``variables`` that engines may see, see :data:`ALLOWED`."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if any(fnmatchcase(name, pattern) for pattern in ALLOWED)
    }


SOCKETS = "VLLM_RPC_BASE_PATH"
"""Names the folder of the sockets by which vLLM's processes speak to each other; by default that of temporary files."""
TEMPORARY = "TEMP"
"""Where Python puts temporary files if ``TMPDIR`` is not set. Ray goes by ``TMPDIR`` alone (ray/_common/utils.py)."""
LONGEST_SOCKETS = 70
"""Bytes of such a folder's path. A socket's has 107 at most, 37 of them of its name, see ``unix(7)``."""


@contextlib.contextmanager
def visit_environment(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What the engines of one visit may see of ``variables``, and a folder for their files, which then is removed.

    vLLM leaves its sockets where its processes are ended, and the file by which they meet; perfgate ends an engine
    after each trial: three to nine files of a trial would stay in ``/tmp``. Where no folder can be had, or one too deep
    for a socket, vLLM chooses. ``TMPDIR`` stays as it is: by it Ray finds its cluster, and its own sockets have longer
    paths. So where it is set, Python's temporary files stay there.
    """
    with contextlib.ExitStack() as stack:
        folder = None
        with contextlib.suppress(OSError):
            folder = stack.enter_context(temporary_folder("perfgate-sockets-"))
        fits = folder is not None and len(os.fsencode(folder)) <= LONGEST_SOCKETS
        yield allowed_environment(variables) | ({SOCKETS: str(folder), TEMPORARY: str(folder)} if fits else {})


def engine_environment(job: Job) -> dict[str, str]:
    """All variables of one engine: the machine's, ours, the scenario's, the subject's; later ones win."""
    offline = {"HF_HUB_OFFLINE": "1"} if job.cell.model_folder else {}
    settings = engine_settings(job.cache_folder, job.station)
    if job.bytecode is not None:
        del settings[NO_BYTECODE]
        settings[BYTECODE] = str(job.bytecode)
    variables = {**job.environment, **settings, **offline, **job.cell.engine.env}
    return subject_environment(variables, job.subject)


NO_BYTECODE, BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
"""Python's variables for bytecode: that it writes none, and where it keeps it in the place of ``__pycache__``."""

FIRST_PORT, PORTS, BLOCKS, APART = 20_000, 16, 750, 93
"""Below what the kernel gives away by itself (from 32768). An engine asks the kernel for a free port, lets go of it and
takes it a while later; of eight engines that start side by side two then had the same. So each process of perfgate has
a block of ports of its own, and so has each of its stations: far from one another, because processes that were started
one after the other have blocks that are."""


CACHES = {
    "VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions", "PYTORCH_KERNEL_CACHE_PATH": "torch-kernels",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer", "DG_JIT_CACHE_DIR": "deep-gemm", "CUDA_CACHE_PATH": "cuda",
    "TILELANG_CACHE_DIR": "tilelang", "HUMMING_CACHE_DIR": "humming", "HUMMING_TMP_DIR": "humming-modules",
    "QUACK_CACHE_DIR": "quack", "CUTE_DSL_CACHE_DIR": "cute-dsl", "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention",
}  # fmt: skip
"""Folders of what is compiled or tuned, by the variable that names them: of vLLM, of the packages that its CUDA build
needs, as their sources read them, and of the driver, which compiles PTX. By default they are in the user's home or in
``/tmp``, where one side would use the other's and a cold start would find what an earlier one compiled."""


def engine_settings(cache: Path, station: int = 0) -> dict[str, str]:
    """What perfgate itself sets for everything that a subject's interpreter runs; caches go below ``cache``."""
    return {
        # The engine loop in the worker's own process: one clock, and a scheduler that can be asked.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_PORT": str(FIRST_PORT + PORTS * ((os.getpid() + APART * station) % BLOCKS)),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **{name: str(cache / folder) for name, folder in CACHES.items()},
        # As -P, but Python 3.10 ignores it instead of refusing; the worker corrects its own path there.
        "PYTHONSAFEPATH": "1",
        # Nothing is written beside sources: a folder of path= is the user's, and may be read-only or in a checkout.
        NO_BYTECODE: "1",
        # What an engine printed last is worth most when it dies.
        "PYTHONUNBUFFERED": "1",
    }


def subject_environment(variables: Mapping[str, str], subject: Subject) -> dict[str, str]:
    """``variables`` with the subject's own over them, and its folders on the module path."""
    merged = {**variables, **subject.env}
    # Nothing is inherited here, but a scenario or subject may name more folders; those of path= come first.
    path = [*subject.path, *filter(None, [merged.pop("PYTHONPATH", "")])]
    return {**merged, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def gpus_of(args: Mapping[str, Any]) -> int:
    """How many GPUs an engine with these arguments takes."""
    sizes = [args.get(name) for name in _PARALLEL]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)


def find_subject(subject: Subject) -> Failure | None:
    """``subject-not-found`` where the interpreter or a folder of ``path`` is missing, or something else is there."""
    if subject.url is not None:
        return None
    if shutil.which(subject.python) is None:
        there = os.sep in subject.python and Path(subject.python).exists()
        what = "is there, and is not a program that you may execute" if there else "no such program"
        return Failure(code="subject-not-found", text=f"python={subject.python}: {what}")
    for folder in subject.path:
        if not Path(folder).is_dir():
            what = "is a file; name the folder that it is in" if Path(folder).exists() else "no such folder"
            return Failure(code="subject-not-found", text=f"path={folder}: {what}")
    return None


def require_subjects(subjects: Builds) -> None:
    """See that every build is there before an engine of another is started.

    Raises:
        UsageError: ``subject-not-found``.
    """
    for label, subject in subjects.items():
        missing = find_subject(subject)
        if missing is not None:
            raise UsageError(missing.text, where=label, code=missing.code)
