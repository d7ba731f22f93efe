"""Profilers tried from end to end: a real nsys where there is one, and stand-ins for what goes wrong elsewhere.

The stand-ins print what the real programs were seen to print (nsys 2022.4 to 2024.2, ncu 2025.3), or what their
documentation quotes where no machine at hand shows it.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from fake_nvml import FakeMachine
from hand_made import scenario_file
from perfgate_process import DEADLINE_S
from stub_engine import write_stub

from perfgate.cli.main import main
from perfgate.doctor import profilers
from perfgate.doctor.profilers import (
    COUNTER,
    NCU,
    NSYS,
    Interpreter,
    check_counters,
    check_presence,
    find_ranges,
    run_probe,
    try_ncu,
    try_nsys,
)
from perfgate.trace import profiler_commands

FIXTURES = Path(__file__).parents[1] / "fixtures"
needs_nsys = pytest.mark.skipif(
    shutil.which("nsys") is None or importlib.util.find_spec("nvtx") is None,
    reason="there is no nsys on PATH, or no nvtx beside pytest",
)

TORCH = '''
"""A stand-in for a torch with a GPU: it computes nothing."""
__version__ = "2.11.0+cu130"

class version:
    cuda = "13.0"

class ones:
    def __init__(self, *size, device):
        assert device == "cuda"

    def __matmul__(self, other):
        return self

class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)

    class nvtx:
        range_start = staticmethod(lambda text: text)
        range_end = staticmethod(lambda handle: None)
'''

NVTX = '''
"""A stand-in for a release of nvtx that nsys does not see."""
start_range = end_range = lambda _: None
'''

PROFILING = """
import pathlib, shutil, subprocess, sys
(out,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--output=")]
if sys.argv[1] == "profile":
    child = subprocess.run([word for word in sys.argv[2:] if not word.startswith("--")])
    {after_profile}
    sys.exit(child.returncode)
{export}
"""
"""A stand-in for nsys: it runs the program, and does with its report what a test wants."""

WRITES_REPORT = 'pathlib.Path(out + ".nsys-rep").touch()'
NO_IMPORTER = """print("Importer error status: The importer binary and its dependencies were not found.")
    pathlib.Path(out + ".qdstrm").touch()"""
"""As nsys 2022.4 and 2024.2 do without their host part, at exit status 0."""
LOCKED = 'sys.exit("ERROR: database is locked")'
"""As nsys's release notes say of file systems without locks."""

Install = Callable[[str, str], None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that puts a Python program of some name on PATH, which holds no other profiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, text: str) -> None:
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)

    return install


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("answer", ["{", "[]", "[" * 90_000])
def test_an_answer_of_a_probe_that_is_no_answer(place: Path, tmp_path: Path, answer: str) -> None:
    """The interpreter is the subject's, and so is what it writes."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{answer}' > \"$3\"\n")
    python.chmod(0o755)

    ran = run_probe("look", Interpreter("base", str(python), {}), place, 20.0)

    assert (ran.status, ran.answer) == (0, None)


def test_a_second_run_answers_for_itself(place: Path) -> None:
    """What a program printed in an earlier run in the same folder is no part of its next answer."""
    first = profiler_commands.run(["echo", "Version 1"], os.environ, place, 10.0)
    second = profiler_commands.run(["echo", "Version 2"], os.environ, place, 10.0)
    assert (first.text, second.text, second.end) == ("Version 1", "Version 2", "Version 2")


def subject(*packages: Path) -> Interpreter:
    """This interpreter with these folders on its module path."""
    path = os.pathsep.join(map(str, packages))
    return Interpreter("base", sys.executable, {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})


def package(folder: Path, name: str, text: str, version: str = "") -> Path:
    """A folder for a module path that holds one package, installed as a version of it if one is given."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    if version:
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def nsys(after_profile: str = WRITES_REPORT, export: str = "") -> str:
    """A stand-in for nsys."""
    return PROFILING.format(after_profile=after_profile, export=export)


def exported(file: Path, ranges: Sequence[str], kernels: int) -> str:
    """What a stand-in's export does: give out a made-up file with these ranges and so many kernels."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid)")
        for number, name in enumerate(ranges):
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 60, ?, NULL, 1)", (number, number + 1, name))
        if kernels:
            database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start)")
            database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?)", [(n,) for n in range(kernels)])
    database.close()
    return f"shutil.copy({str(file)!r}, out)"


def ranges_of(*sources: str) -> list[str]:
    """The names of what the probe opens."""
    return [f"perfgate.doctor.{source}.{number}" for number in range(3) for source in sources]


NSYS_LOST_ITS_AGENT = ("Connection to the Agent lost", "sem_open", "Local Endpoint is not available")
"""What nsys says now and then on a busy machine, of its own two processes."""


@needs_nsys
def test_real_nsys_shows_the_ranges_of_a_real_program(place: Path) -> None:
    """Ranges opened by nvtx in a child come out of a real profile and export, without a GPU too."""
    path = [entry for entry in sys.path if "site-packages" in entry]
    for attempt in range(3):
        own = place / str(attempt)
        own.mkdir()
        finding = try_nsys(subject(*map(Path, path)), own, gpu=False)
        if not any(words in finding.found for words in NSYS_LOST_ITS_AGENT):
            break
    assert finding.status == "ok", finding.found
    assert "found again 3 ranges by nvtx" in finding.found


@needs_nsys
def test_real_nsys_that_misses_ranges_is_no_success(tmp_path: Path, place: Path) -> None:
    """A program whose ranges a real nsys does not see fails though every exit status is 0, and is told what to take."""
    unseen = package(tmp_path / "site", "nvtx", NVTX, "0.2.13")
    finding = try_nsys(subject(unseen), place, gpu=False)
    assert finding.status == "failed"
    assert "no range opened by nvtx 0.2.13" in finding.found
    assert finding.mend.startswith(f"{sys.executable} -m pip install 'nvtx<0.2.12'")


@pytest.fixture
def gpu_subject(tmp_path: Path) -> Interpreter:
    """An interpreter whose torch is a stand-in that has a GPU, and brings a CUPTI."""
    site = package(tmp_path / "gpu-site", "torch", TORCH)
    (site / "nvidia/cu13/lib").mkdir(parents=True)
    (site / "nvidia/cu13/lib/libcupti.so.13").touch()
    return subject(package(site, "nvtx", NVTX, "0.2.13"))


def test_everything_put_in_is_found_again(programs: Install, tmp_path: Path, place: Path) -> None:
    """With both kinds of ranges and kernels in the export the trace is as it should be, and says what it holds."""
    site = package(tmp_path / "gpu-site", "torch", TORCH)
    package(site, "nvtx", NVTX, "0.2.10")
    programs("nsys", nsys(export=exported(tmp_path / "made.sqlite", ranges_of("nvtx", "torch"), 4)))
    finding = try_nsys(subject(site), place, gpu=True)
    assert finding.status == "ok", finding.found
    assert "found again 6 ranges by nvtx 0.2.10, torch.cuda.nvtx and 4 kernels" in finding.found


def test_ranges_of_one_package_only(programs: Install, tmp_path: Path, place: Path, gpu_subject: Interpreter) -> None:
    """Where nsys sees torch's ranges and not those of nvtx it is a warning: traces work, by one of the two."""
    programs("nsys", nsys(export=exported(tmp_path / "made.sqlite", ranges_of("torch"), 4)))
    finding = try_nsys(gpu_subject, place, gpu=True)
    assert finding.status == "warning"
    assert finding.found.endswith("ranges by nvtx 0.2.13 are not seen")


def test_missing_ranges(programs: Install, tmp_path: Path, place: Path, gpu_subject: Interpreter) -> None:
    """Kernels without any range fail: nobody could tell the steps apart."""
    programs("nsys", nsys(export=exported(tmp_path / "made.sqlite", (), 4)))
    finding = try_nsys(gpu_subject, place, gpu=True)
    assert finding.status == "failed"
    assert "no range opened by nvtx 0.2.13, torch.cuda.nvtx" in finding.found


def test_missing_kernels_name_the_cupti_to_use(
    programs: Install, tmp_path: Path, place: Path, gpu_subject: Interpreter
) -> None:
    """A trace without kernels of a program that ran some fails, and the remedy names the CUPTI that torch brings."""
    programs("nsys", nsys(export=exported(tmp_path / "made.sqlite", ranges_of("nvtx", "torch"), 0)))
    finding = try_nsys(gpu_subject, place, gpu=True)
    assert finding.status == "failed"
    assert "CUPTI is older than the driver" in finding.found
    assert "/nvidia/cu13/lib/libcupti.so.13 ~/.cupti/libcupti.so.13.0" in finding.mend
    assert "NSYS_CUPTI_LIBRARY_PATH=~/.cupti" in finding.mend


def test_cupti_chosen_by_the_user_reaches_nsys(
    programs: Install, place: Path, gpu_subject: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that steer nsys are passed to it, though no engine gets them."""
    monkeypatch.setenv("NSYS_CUPTI_LIBRARY_PATH", "/chosen")
    programs("nsys", nsys(after_profile="import os; print('got', os.environ['NSYS_CUPTI_LIBRARY_PATH'])"))
    assert "got /chosen" in try_nsys(gpu_subject, place, gpu=True).found


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (nsys(after_profile=NO_IMPORTER), "its host part is missing\nImporter error status"),
        (nsys(after_profile="pass"), "ended with status 0 and wrote no report"),
        (nsys(export=LOCKED), "its export to SQLite ended with status 1\nERROR: database is locked"),
        (nsys(export="pass"), "its export to SQLite ended with status 0"),
        (nsys(export='open(out, "w").write("no database")'), "the export: not an SQLite database"),
        (nsys(export='open(out, "w")'), "the export: is empty"),
        ('import sys; sys.exit("unrecognised option")', "nsys profile ended with status 1\nunrecognised option"),
    ],
    ids=["no importer", "no report", "locked", "no export", "garbage", "empty", "refused"],
)
def test_what_nsys_does_not_achieve(
    programs: Install, place: Path, gpu_subject: Interpreter, program: str, words: str
) -> None:
    """Each way in which nsys comes to nothing fails with its own words, whatever its exit status."""
    programs("nsys", program)
    finding = try_nsys(gpu_subject, place, gpu=True)
    assert finding.status == "failed"
    assert words in finding.found
    assert finding.mend


def test_torch_that_does_not_use_the_gpu(programs: Install, tmp_path: Path, place: Path) -> None:
    """A GPU that the driver shows and the subject's torch does not use is a failure of that subject."""
    site = package(tmp_path / "site", "torch", TORCH.replace("lambda: True", "lambda: False"))
    programs("nsys", nsys(export=exported(tmp_path / "made.sqlite", ranges_of("torch"), 0)))
    finding = try_nsys(subject(site), place, gpu=True)
    assert finding.status == "failed"
    assert "the driver shows a GPU, its torch (2.11.0+cu130) does not use one" in finding.found


def test_nothing_to_trace(programs: Install, place: Path, tmp_path: Path) -> None:
    """An interpreter that can neither open a range nor launch a kernel is skipped, with what it needs."""
    cpu_torch = TORCH.replace("lambda: True", "lambda: False").replace('"13.0"', "None")
    site = package(tmp_path / "site", "torch", cpu_torch)
    (site / "nvtx.py").write_text("raise ModuleNotFoundError('No module named nvtx')")
    programs("nsys", nsys())
    finding = try_nsys(subject(site), place, gpu=False)
    assert finding.status == "skipped"
    assert finding.mend.endswith("-m pip install 'nvtx<0.2.12'")


def test_a_profiler_that_hangs_is_ended(
    programs: Install, place: Path, gpu_subject: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profiler still busy when its time is up is ended with what it started, and the finding says so."""
    monkeypatch.setattr(profilers, "PROFILE_TIMEOUT_S", 1.0)
    programs("nsys", "import pathlib, os, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(600)")
    finding = try_nsys(gpu_subject, place, gpu=True)
    assert finding.status == "failed"
    assert "still busy when its time was up" in finding.found
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(int((place / "pid").read_text())):
        assert time.monotonic() < deadline, "it lives"
        time.sleep(0.05)


def test_an_absent_profiler_matters_where_there_is_a_gpu(programs: Install, place: Path) -> None:
    """Without nsys and ncu the deep checks fail on a GPU and are skipped without one; their absence alone warns."""
    programs("other", "")
    one = subject()
    assert [try_nsys(one, place, gpu=gpu).status for gpu in (True, False)] == ["failed", "skipped"]
    assert [try_ncu(one, place, gpu=gpu).status for gpu in (True, False)] == ["failed", "skipped"]
    assert [check_presence(NCU, one.environment, place, gpu=gpu).status for gpu in (True, False)] == [
        "warning",
        "skipped",
    ]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ('print("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0")', "ok", "2023.4.4.54-234433681190v0, "),
        ('import sys; sys.exit("libssh.so.4: cannot open")', "failed", "ended with status 1\nlibssh.so.4: cannot open"),
    ],
)
def test_presence_is_a_program_that_says_its_version(
    programs: Install, place: Path, text: str, status: str, words: str
) -> None:
    """A profiler is there when it says its version; one that does not start fails in its own words."""
    programs("nsys", text)
    finding = check_presence(NSYS, {"PATH": os.environ["PATH"]}, place, gpu=True)
    assert finding.status == status
    assert words in finding.found


def test_a_recorded_trace_is_read(tmp_path: Path) -> None:
    """An export recorded on an H200 gives the three ranges that went in and its seven kernels."""
    file = tmp_path / "trace.sqlite"
    file.write_bytes(gzip.decompress((FIXTURES / "h200-nsys-ranges.sqlite.gz").read_bytes()))
    assert find_ranges(file) == (tuple(f"perfgate.doctor.{number}" for number in range(3)), 7)


def ncu_table(metrics: Mapping[str, str]) -> str:
    """What ncu prints for one kernel, in the shape of the recording."""
    columns = {"ID": "0", "Kernel Name": "gemm, of a kind", **metrics}
    rows = (columns.keys(), [""] * len(columns), columns.values())
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f"==PROF== Connected to process 4711\n427914240.0\n{table}\n==PROF== Disconnected from process 4711\n"


def test_a_counted_kernel(programs: Install, place: Path) -> None:
    """A counter that ncu shows is reported with its value; ncu is told to leave the clocks alone."""
    programs(
        "ncu",
        f"import sys; assert '--clock-control none' in ' '.join(sys.argv); print({ncu_table({COUNTER: '12,345'})!r})",
    )
    finding = try_ncu(subject(), place, gpu=True)
    assert finding.status == "ok", finding.found
    assert f"{COUNTER} = 12,345 for one kernel" in finding.found


def test_a_gpu_machine_that_is_ready(
    programs: Install, tmp_path: Path, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where everything works, all checks of the command end well, the deep ones included, and nothing is locked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profilers, "DRIVER_SETTINGS", tmp_path / "params")
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 0\n")
    write_stub(tmp_path / "site")
    (tmp_path / "site" / "torch.py").unlink()
    package(package(tmp_path / "site", "torch", TORCH), "nvtx", NVTX, "0.2.10")
    export = exported(tmp_path / "made.sqlite", ranges_of("nvtx", "torch"), 4)
    version = "import sys\nif sys.argv[1:] == ['--version']: sys.exit(print('Version 2025.3.1.0'))\n"
    programs("nsys", version + nsys(export=export))
    programs("ncu", version + f"print({ncu_table({COUNTER: '12,345'})!r})")
    base = [f"python={sys.executable}", f"path={tmp_path / 'site'}", "env.STUB_MODE="]
    words = [str(scenario_file(tmp_path)), "--deep", *(part for word in base for part in ("--base", word))]

    result = CliRunner().invoke(main, ["doctor", *words, "--format", "text"])

    assert result.exit_code == 0, result.stdout
    assert result.stdout.endswith("READY: no check failed; 0 warnings, 0 checks skipped.\n"), result.stdout
    assert fake_nvml.calls == []


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters.",
            "permits counters to administrators only",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable.",
            "another profiler or DCGM holds the GPU's counters",
        ),
        ("==WARNING== No kernels were profiled.", "counted nothing: "),
        ("something else", f"ended with status 0 and showed no {COUNTER}"),
    ],
)
def test_why_ncu_counts_nothing(programs: Install, place: Path, said: str, meaning: str) -> None:
    """The known causes (quoted from ncu and its documentation) are told apart, though ncu may end with 0."""
    programs("ncu", f"print({said!r})")
    finding = try_ncu(subject(), place, gpu=True)
    assert finding.status == "failed"
    assert meaning in finding.found
    assert said in finding.found
    assert finding.mend


@pytest.mark.parametrize(
    ("settings", "capabilities", "status"),
    [
        ("RmProfilingAdminOnly: 0\n", "0", "ok"),
        ("RmProfilingAdminOnly: 1\n", "000001fffeffffff", "ok"),
        ("RmProfilingAdminOnly: 1\n", "00000000a80425fb", "warning"),
        ("RmLogonRC: 1\n", "0", "skipped"),
        (None, "0", "skipped"),
    ],
    ids=["everybody", "administrator", "Docker's capabilities", "not said", "no driver"],
)
def test_who_may_read_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str | None, capabilities: str, status: str
) -> None:
    """Counters are permitted by the driver's setting, or by CAP_SYS_ADMIN (bit 21) where that is set."""
    monkeypatch.setattr(profilers, "DRIVER_SETTINGS", tmp_path / "params")
    monkeypatch.setattr(profilers, "OWN_STATUS", tmp_path / "status")
    (tmp_path / "status").write_text(f"CapPrm:\t0\nCapEff:\t{capabilities}\nCapBnd:\t0\n")
    if settings is not None:
        (tmp_path / "params").write_text(f"ResmanDebugLevel: 4294967295\n{settings}")
    assert check_counters().status == status
