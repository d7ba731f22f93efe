"""Whether the profilers work here: present, permitted, and, on request, tried from end to end on a tiny program.

A profiler's exit status proves nothing: nsys ends with 0 where its importer is missing or its CUPTI is older than the
driver, and ncu where nothing matched. So what was put in must be found again in what comes out.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.counters.ncu_csv import parse_ncu
from perfgate.doctor.diagnosis import Check, Finding
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.machine.json_text import read_json
from perfgate.reasons import REASONS
from perfgate.trace.nsys import named_ranges
from perfgate.trace.nsys_export import KERNELS, Export
from perfgate.trace.profiler_commands import NCU_SETTINGS, VERSION_TIMEOUT_S, Ran, nsys_profile, nsys_settings, run

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
_SEE_LOG = "Fix what its last lines say, then try again."
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

    def under(self, settings: Mapping[str, str]) -> Interpreter:
        """The same with more variables."""
        return dataclasses.replace(self, environment={**self.environment, **settings})

    def __str__(self) -> str:
        """For people: ``base (/path/to/python)``."""
        return f"{self.name} ({self.python})"


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", OWN_STATUS.read_text(), re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) >> number & 1)


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
    """Trace a tiny program, and find its ranges and kernels again in the SQLite export; the folder is empty."""
    check, interpreter = NSYS_TRACE.of(interpreter), interpreter.under(nsys_settings())
    nsys = shutil.which("nsys", path=interpreter.environment.get("PATH"))
    if nsys is None:
        return (NSYS_TRACE.failed if gpu else NSYS_TRACE.skipped)("no nsys on PATH", _INSTALL["nsys"])
    ran = run_probe("trace", interpreter, folder, PROFILE_TIMEOUT_S, before=nsys_profile(nsys, folder / "trace"))
    if ran.status != 0 or ran.answer is None:
        return check.failed(f"nsys profile {_how(ran)}\n{ran.end}", _SEE_LOG)
    if not ran.answer["ranges"] and not ran.answer["gpu"]:
        text = f"{interpreter} has nothing to trace: neither a GPU to its torch nor the package nvtx"
        return NSYS_TRACE.skipped(text, f"{interpreter.python} -m pip install 'nvtx<0.2.12'")
    if not (folder / "trace.nsys-rep").exists():
        if "mporter" in ran.text or any(folder.glob("*.qdstrm")):
            text = f"nsys traced and could not import what it traced: its host part is missing\n{ran.end}"
            return check.failed(text, "Install the whole of Nsight Systems; some packages bring only its target part.")
        return check.failed(f"nsys ended with status 0 and wrote no report\n{ran.end}", _INSTALL["nsys"])
    exporting = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={folder / 'trace.sqlite'}"]
    exported = run([*exporting, str(folder / "trace.nsys-rep")], interpreter.environment, folder, EXPORT_TIMEOUT_S)
    return _find_again(check, interpreter, ran.answer, exported, folder / "trace.sqlite", gpu=gpu)


def try_ncu(interpreter: Interpreter, folder: Path, *, gpu: bool) -> Finding:
    """Count one kernel of a tiny program, and find the counter's value in the CSV. Clocks are left alone."""
    check = NCU_COUNT.of(interpreter)
    if not gpu:
        return NCU_COUNT.skipped("no GPU here")
    ncu = shutil.which("ncu", path=interpreter.environment.get("PATH"))
    if ncu is None:
        return NCU_COUNT.failed("no ncu on PATH", _INSTALL["ncu"])
    flags = ["--config-file", "off", "--target-processes", "all", "--clock-control", "none", "--launch-count", "1"]
    flags += ["--metrics", COUNTER, "--csv", "--page", "raw", "--print-units", "base"]
    ran = run_probe("count", interpreter.under(NCU_SETTINGS), folder, PROFILE_TIMEOUT_S, before=[ncu, *flags])
    end, value = ran.end, None
    try:
        value = parse_ncu(ran.text, "ncu").launches[0].values.get(COUNTER)
    except NotMeasuredError as error:
        remedy = _NO_KERNEL if error.code == "counters-missing" else error.remedy
        return check.failed(f"ncu counted nothing: {error.text}\n{end}", remedy)
    except RecordError as error:
        end = f"{error.text}\n{end}"
    if ran.status != 0 or value is None:
        return check.failed(f"ncu {_how(ran)} and showed no {COUNTER}\n{end}", _SEE_LOG)
    return check.ok(f"{COUNTER} = {value:,.0f} for one kernel")


def find_ranges(export: Path) -> tuple[tuple[str, ...], int]:
    """The closed ranges of the probe by name, in order, and the number of kernels, in an SQLite export of nsys.

    Raises:
        RecordError: It is not such an export.
    """
    with Export(export) as opened:
        ranges = [name for name, _, end, _ in named_ranges(opened) if end is not None]
        return tuple(name for name in ranges if name.startswith(RANGE_PREFIX)), opened.count(KERNELS)


def run_probe(
    task: str, interpreter: Interpreter, folder: Path, timeout_s: float, *, before: Sequence[str] = ()
) -> Ran:
    """Run a task of :mod:`perfgate.doctor.probe`, under a profiler where ``before`` is its command line."""
    answer = folder / "answer.json"
    argv = [*before, interpreter.python, str(PROBE), task, str(answer)]
    ran = run(argv, interpreter.environment, folder, timeout_s)
    try:
        content = read_json(answer)
    except (FileNotFoundError, ValueError):  # the interpreter that wrote it is the subject's
        return ran
    return dataclasses.replace(ran, answer=content if isinstance(content, dict) else None)


def _how(ran: Ran) -> str:
    return "was still busy when its time was up" if ran.status is None else f"ended with status {ran.status}"


def _find_again(
    check: Check, interpreter: Interpreter, put_in: Mapping[str, Any], exported: Ran, export: Path, *, gpu: bool
) -> Finding:
    """Compare what the probe did with what the export shows of it."""
    if exported.status != 0 or not export.exists():
        text = f"nsys wrote a report, and its export to SQLite {_how(exported)}\n{exported.end}"
        return check.failed(text, "Point TMPDIR at a local disk with room: the export needs file locks.")
    try:
        ranges, kernels = find_ranges(export)
    except RecordError as error:
        return check.failed(f"the export: {error.text}", _INSTALL["nsys"])
    if gpu and not put_in["gpu"]:
        text = f"the driver shows a GPU, its torch ({put_in['torch'] or 'none'}) does not use one"
        return check.failed(text, "Give the subject a torch built for this driver's CUDA.")
    if put_in["gpu"] and not kernels:
        text = "the trace holds no kernel, though kernels ran: nsys's CUPTI is older than the driver"
        return check.failed(f"{text}, or another tool holds CUPTI", _newer_cupti(put_in))
    remedy = _OLD_NVTX.format(python=interpreter.python)
    sources = [name.removeprefix(RANGE_PREFIX).partition(".")[0] for name in ranges]
    names = {"nvtx": f"nvtx {put_in['nvtx']}", "torch": "torch.cuda.nvtx"}
    seen: list[str] = []
    lost: list[str] = []
    for source, number in put_in["ranges"].items():
        (lost if sources.count(source) < number else seen).append(names[source])
    if not seen:
        opened = ", ".join(lost) or "nothing"
        return check.failed(f"the trace holds no range opened by {opened}: this nsys does not see them", remedy)
    text = f"found again {len(sources)} ranges by {', '.join(seen)}"
    text += f" and {kernels} kernels" if put_in["gpu"] else "; no GPU, so no kernels"
    return check.warning(f"{text}; ranges by {', '.join(lost)} are not seen", remedy) if lost else check.ok(text)


def _newer_cupti(put_in: Mapping[str, Any]) -> str:
    """How to give nsys the CUPTI that came with torch; it looks for it under the name with both numbers of CUDA."""
    if not put_in["cupti"] or not put_in["cuda"]:
        return "Use a newer nsys, or name the folder of a newer CUPTI in NSYS_CUPTI_LIBRARY_PATH."
    library = f"libcupti.so.{put_in['cuda']}"
    return (
        f"mkdir -p ~/.cupti && ln -sf {put_in['cupti']} ~/.cupti/{library} && export NSYS_CUPTI_LIBRARY_PATH=~/.cupti; "
        "or use a newer nsys."
    )
