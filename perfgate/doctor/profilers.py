"""Whether the profilers work here: present, permitted, and, on request, tried from end to end on a tiny program.

A profiler's exit status proves nothing: nsys ends with 0 where its importer is missing or its CUPTI is older than the
driver, and ncu where nothing matched. So what was put in must be found again in what comes out.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.capture.commands import NCU_SETTINGS, VERSION_TIMEOUT_S, Ran, nsys_profile, nsys_settings, run
from perfgate.counters.ncu_csv import parse_ncu
from perfgate.doctor.diagnosis import Check, Finding
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.machine.json_text import read_json
from perfgate.reasons import REASONS
from perfgate.trace.nsys import KERNELS, named_ranges
from perfgate.trace.nsys_export import Export

PROBE = Path(__file__).with_name("probe.py")
DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 21
"""Number of the capability, from linux/capability.h."""

COUNTER = "smsp__inst_executed.sum"
"""A counter that every chip since GA100 has, also in a MIG slice, and that one pass collects."""


PROFILE_TIMEOUT_S = 180.0
EXPORT_TIMEOUT_S = 60.0
RANGE_PREFIX = "perfgate.doctor."

NSYS = Check("nsys", "Traces by nsys show which kernels a slower step is made of; timed trials do without.")
NCU = Check("ncu", "Counters by ncu show why a kernel is slow; timed trials do without.")
COUNTERS = Check("counters", "The driver lets ncu read counters only if its setting or a capability permits it.")
NSYS_TRACE = Check("nsys-trace", "A trace without its ranges or kernels would look like a build without kernels.")
NCU_COUNT = Check("ncu-count", "Only a counter that was really read shows that reading is permitted.")

_INSTALL = {
    "nsys": "Install Nsight Systems (developer.nvidia.com/nsight-systems) and put nsys on PATH.",
    "ncu": "Install Nsight Compute (it comes with the CUDA toolkit) and put ncu on PATH.",
}
_PERMIT = REASONS["counters-no-permission"].remedy
_OLD_NVTX = "{python} -m pip install 'nvtx<0.2.12', or use a newer nsys."
_NO_KERNEL = "Check that the subject's torch uses the GPU that ncu supports."


@dataclass(frozen=True)
class Interpreter:
    """A Python to look at, with what it runs under.

    Args:
        name: For people, like ``base``.
        python: The program.
        environment: All variables it gets.
    """

    name: str
    python: str
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """For people: ``base (/path/to/python)``."""
        return f"{self.name} ({self.python})"


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", OWN_STATUS.read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def check_presence(check: Check, environment: Mapping[str, str], folder: Path, *, gpu: bool) -> Finding:
    """Whether the profiler of this name is on PATH, and its version; without a GPU nobody misses it."""
    program = shutil.which(check.name, path=environment.get("PATH"))
    if program is None:
        return (check.warning if gpu else check.skipped)(f"no {check.name} on PATH", _INSTALL[check.name])
    ran = run([program, "--version"], environment, folder, VERSION_TIMEOUT_S)
    version = re.search(r"[Vv]ersion (\S+)", ran.text)
    if ran.status != 0 or version is None:
        return check.failed(f"{program} --version {_how(ran)}\n{ran.end}", _INSTALL[check.name])
    return check.ok(f"{version[1]}, {program}")


def check_counters() -> Finding:
    """What the driver's settings say about counters; nothing is tried."""
    try:
        settings = DRIVER_SETTINGS.read_text()
    except OSError:
        return COUNTERS.skipped("no NVIDIA driver shows its settings here")
    admin_only = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", settings, re.MULTILINE)
    if admin_only is None:
        return COUNTERS.skipped(f"{DRIVER_SETTINGS} does not say who may read counters; --deep tries it")
    if admin_only[1] == "0":
        return COUNTERS.ok("permitted to everybody")
    if has_capability(CAP_SYS_ADMIN):
        return COUNTERS.ok("permitted to administrators only, which this process is")
    return COUNTERS.warning("permitted to administrators only, which this process is not", _PERMIT)


def try_nsys(interpreter: Interpreter, folder: Path, *, gpu: bool) -> Finding:
    """Trace a tiny program, and find its ranges and kernels again in the SQLite export.

    Args:
        interpreter: Runs the program; its own packages open the ranges.
        folder: Empty; nsys writes its report there.
        gpu: Whether the driver shows a GPU, so that there must be kernels.
    """
    environment = {**interpreter.environment, **nsys_settings()}
    nsys = shutil.which("nsys", path=environment.get("PATH"))
    if nsys is None:
        return (NSYS_TRACE.failed if gpu else NSYS_TRACE.skipped)("no nsys on PATH", _INSTALL["nsys"])
    profile = nsys_profile(nsys, folder / "trace")
    ran = run_probe("trace", interpreter, folder, PROFILE_TIMEOUT_S, before=profile, environment=environment)
    if ran.status != 0 or ran.answer is None:
        return NSYS_TRACE.failed(
            f"{interpreter}: nsys profile {_how(ran)}\n{ran.end}", "Fix what its last lines say, then try again."
        )
    if not ran.answer["ranges"] and not ran.answer["gpu"]:
        return NSYS_TRACE.skipped(
            f"{interpreter} has nothing to trace: neither a GPU to its torch nor the package nvtx",
            f"{interpreter.python} -m pip install 'nvtx<0.2.12'",
        )
    if not (folder / "trace.nsys-rep").exists():
        return _no_report(interpreter, ran, folder)
    export = folder / "trace.sqlite"
    exporting = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}"]
    exported = run([*exporting, str(folder / "trace.nsys-rep")], environment, folder, EXPORT_TIMEOUT_S)
    return _find_again(interpreter, ran.answer, exported, export, gpu=gpu)


def try_ncu(interpreter: Interpreter, folder: Path, *, gpu: bool) -> Finding:
    """Count one kernel of a tiny program, and find the counter's value in the CSV. Clocks are left alone."""
    if not gpu:
        return NCU_COUNT.skipped("no GPU here")
    ncu = shutil.which("ncu", path=interpreter.environment.get("PATH"))
    if ncu is None:
        return NCU_COUNT.failed("no ncu on PATH", _INSTALL["ncu"])
    flags = ["--config-file", "off", "--target-processes", "all", "--clock-control", "none", "--launch-count", "1"]
    flags += ["--metrics", COUNTER, "--csv", "--page", "raw", "--print-units", "base"]
    environment = {**interpreter.environment, **NCU_SETTINGS}
    ran = run_probe("count", interpreter, folder, PROFILE_TIMEOUT_S, before=[ncu, *flags], environment=environment)
    value = None
    try:
        value = parse_ncu(ran.text, "ncu").launches[0].values.get(COUNTER)
    except NotMeasuredError as error:
        mend = _NO_KERNEL if error.code == "counters-no-kernel" else error.remedy
        return NCU_COUNT.failed(f"{interpreter}: ncu counted nothing: {error.text}\n{ran.end}", mend)
    except RecordError as error:
        ran = dataclasses.replace(ran, end=f"{error.text}\n{ran.end}")
    if ran.status != 0 or value is None:
        return NCU_COUNT.failed(
            f"{interpreter}: ncu {_how(ran)} and showed no {COUNTER}\n{ran.end}",
            "Fix what its last lines say, then try again.",
        )
    return NCU_COUNT.ok(f"{interpreter}: {COUNTER} = {value:,.0f} for one kernel")


def find_ranges(export: Path) -> tuple[tuple[str, ...], int]:
    """The closed ranges of the probe by name, in order, and the number of kernels, in an SQLite export of nsys.

    Raises:
        RecordError: It is no such export.
    """
    with Export(export) as opened:
        ranges = [name for name, _, end, _ in named_ranges(opened) if end is not None]
        return tuple(name for name in ranges if name.startswith(RANGE_PREFIX)), opened.count(KERNELS)


def run_probe(
    task: str,
    interpreter: Interpreter,
    folder: Path,
    timeout_s: float,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a task of :mod:`perfgate.doctor.probe`, under a profiler where ``before`` is its command line."""
    answer = folder / "answer.json"
    argv = [*before, interpreter.python, str(PROBE), task, str(answer)]
    ran = run(argv, interpreter.environment if environment is None else environment, folder, timeout_s)
    try:
        said = read_json(answer)
    except (FileNotFoundError, ValueError):  # the interpreter that wrote it is the subject's
        said = None
    return Ran(ran.status, ran.text, ran.end, said if isinstance(said, dict) else None)


def _how(ran: Ran) -> str:
    if ran.status is None:
        return "was still busy when its time was up"
    return f"ended with status {ran.status}"


def _no_report(interpreter: Interpreter, ran: Ran, folder: Path) -> Finding:
    if "mporter" in ran.text or any(folder.glob("*.qdstrm")):
        return NSYS_TRACE.failed(
            f"{interpreter}: nsys traced and could not import what it traced: its host part is missing\n{ran.end}",
            "Install the whole of Nsight Systems; some packages bring only its target part.",
        )
    return NSYS_TRACE.failed(
        f"{interpreter}: nsys ended with status 0 and wrote no report\n{ran.end}", _INSTALL["nsys"]
    )


def _find_again(
    interpreter: Interpreter, put_in: Mapping[str, Any], exported: Ran, export: Path, *, gpu: bool
) -> Finding:
    """Read the export and compare."""
    if exported.status != 0 or not export.exists():
        words = f"{interpreter}: nsys wrote a report, and its export to SQLite {_how(exported)}\n{exported.end}"
        return NSYS_TRACE.failed(words, "Point TMPDIR at a local disk with room: the export needs file locks.")
    try:
        ranges, kernels = find_ranges(export)
    except RecordError as error:
        return NSYS_TRACE.failed(f"{interpreter}: the export: {error.text}", _INSTALL["nsys"])
    return _judge_trace(interpreter, put_in, ranges, kernels, gpu=gpu)


def _judge_trace(
    interpreter: Interpreter, put_in: Mapping[str, Any], ranges: Iterable[str], kernels: int, *, gpu: bool
) -> Finding:
    """Compare what the probe did with what the export shows of it."""
    sources = [name.removeprefix(RANGE_PREFIX).partition(".")[0] for name in ranges]
    lost = [source for source, number in put_in["ranges"].items() if sources.count(source) < number]
    seen = [source for source in put_in["ranges"] if source not in lost]
    names = {"nvtx": f"nvtx {put_in['nvtx']}", "torch": "torch.cuda.nvtx"}
    opened = ", ".join(names[source] for source in put_in["ranges"]) or "nothing"
    if gpu and not put_in["gpu"]:
        words = f"{interpreter}: the driver shows a GPU, its torch ({put_in['torch'] or 'none'}) does not use one"
        return NSYS_TRACE.failed(words, "Give the subject a torch built for this driver's CUDA.")
    if put_in["gpu"] and not kernels:
        words = f"{interpreter}: the trace holds no kernel, though kernels ran: nsys's CUPTI is older than the driver"
        return NSYS_TRACE.failed(f"{words}, or another tool holds CUPTI", _newer_cupti(put_in))
    nvtx = _OLD_NVTX.format(python=interpreter.python)
    if not seen:
        words = f"{interpreter}: the trace holds no range opened by {opened}: this nsys does not see them"
        return NSYS_TRACE.failed(words, nvtx)
    there = f"{len(sources)} ranges by {', '.join(names[source] for source in seen)}"
    there += f" and {kernels} kernels" if put_in["gpu"] else "; no GPU, so no kernels"
    if lost:
        unseen = ", ".join(names[source] for source in lost)
        return NSYS_TRACE.warning(f"{interpreter}: found again {there}; ranges by {unseen} are not seen", nvtx)
    return NSYS_TRACE.ok(f"{interpreter}: found again {there}")


def _newer_cupti(put_in: Mapping[str, Any]) -> str:
    """How to give nsys the CUPTI that came with torch; it looks for it under the name with both numbers of CUDA."""
    if not put_in["cupti"] or not put_in["cuda"]:
        return "Use a newer nsys, or name the folder of a newer CUPTI in NSYS_CUPTI_LIBRARY_PATH."
    library = f"libcupti.so.{put_in['cuda']}"
    return (
        f"mkdir -p ~/.cupti && ln -sf {put_in['cupti']} ~/.cupti/{library} && export NSYS_CUPTI_LIBRARY_PATH=~/.cupti; "
        "or use a newer nsys."
    )
