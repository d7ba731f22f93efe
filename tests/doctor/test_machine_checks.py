"""``perfgate doctor``: what it finds on machines that are as they should be, and on those that are not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fake_nvml as nvml_stand_in
import jsonschema
import psutil
import pytest
from click.testing import CliRunner
from fake_nvml import FakeMachine, fake_uuid
from hand_made import scenario_file
from stub_engine import write_stub

from perfgate.cli.main import main
from perfgate.doctor import profilers
from perfgate.doctor.diagnosis import FORMAT, Diagnosis, Finding, diagnosis_schema
from perfgate.doctor.folders import RUNS_FOLDER, STATE_FOLDER, check_disk, check_folder
from perfgate.doctor.machine_checks import check_load
from perfgate.machine import clock_lease
from perfgate.machine.cpu_load import CpuLoad
from perfgate.machine.fingerprint import boot_id
from perfgate.machine.locks import CPU, hold_devices
from perfgate.machine.sampler import program_of
from perfgate.report.formats import render

LOCKING = "clocks: {mode: lock, sm_mhz: 1500}"

Examine = Callable[..., list[Finding]]


@pytest.fixture(autouse=True)
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty project on a machine without a GPU and without profilers; ``fake_nvml`` puts a GPU there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgate.machine.nvml.pynvml", nvml_stand_in)
    monkeypatch.setattr(profilers, "DRIVER_SETTINGS", tmp_path / "no-driver")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in (nvml_stand_in.STATE, "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "PERFGATE_CLOCKS_HELPER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def examine() -> Examine:
    """A function that runs ``perfgate doctor`` and gives its findings, all or those of one check.

    Its exit status is 22 if and only if a check failed, and what it prints fits its schema.
    """

    def run(*words: str, check: str = "") -> list[Finding]:
        result = CliRunner().invoke(main, ["doctor", *words, "--format", "json"])
        content = json.loads(result.stdout)
        jsonschema.Draft7Validator(diagnosis_schema()).validate(content)
        found = Diagnosis.model_validate(content)
        assert found.format == FORMAT
        assert result.exit_code == (22 if any(one.status == "failed" for one in found.findings) else 0)
        return [one for one in found.findings if check in ("", one.check)]

    return run


def only(findings: list[Finding]) -> Finding:
    """The one finding."""
    (finding,) = findings
    return finding


def test_a_machine_without_a_gpu_is_no_failure(examine: Examine) -> None:
    """Without GPU, scenario and subject their checks are skipped, each saying why; the rest is looked at."""
    status = {finding.check: finding.status for finding in examine()}
    assert {check for check, one in status.items() if one == "skipped"} >= {"gpu", "counters", "model", "subject"}
    assert {check for check, one in status.items() if one == "ok"} >= {"state-folder", "runs-folder"}
    assert "failed" not in status.values()
    assert not {"gpu-idle", "clock-lock", "stale-leases"} & set(status)


def test_a_lock_without_a_gpu_fails(examine: Examine, tmp_path: Path) -> None:
    """A scenario that locks clocks is not ready on a machine that has none to lock, as a run of it would say."""
    finding = only(examine(str(scenario_file(tmp_path, more=LOCKING)), check="clock-lock"))
    assert finding.status == "failed"
    assert "tiny locks clocks, and there is no GPU here" in finding.found


def test_nothing_stays_behind(examine: Examine, tmp_path: Path, state_of_its_own: Path) -> None:
    """Looking leaves no file behind: not in the project, nor in the state folder, nor a folder for runs."""
    examine(str(scenario_file(tmp_path)), "--deep")
    assert {file.name for file in tmp_path.iterdir()} == {"model", "perfgate.toml", "tiny.yaml"}
    assert not list(state_of_its_own.iterdir())


def test_wrong_words_are_usage_errors(tmp_path: Path) -> None:
    """A scenario that is not there and a subject that makes no sense end with 2, not with a diagnosis."""
    for words in (["missing.yaml"], [str(scenario_file(tmp_path)), "--base", "ref=main"]):
        assert CliRunner().invoke(main, ["doctor", *words]).exit_code == 2


def test_an_idle_gpu(examine: Examine, fake_nvml: FakeMachine) -> None:
    """A GPU that nobody computes on is ready; what its driver keeps for itself is no neighbour."""
    assert only(examine(check="gpu")).found == "1 visible, driver 580.159.04, CUDA up to 13.0"
    finding = only(examine(check="gpu-idle"))
    assert (finding.status, finding.found) == (
        "ok",
        "GPU 0 (NVIDIA H200): nobody computes on it, 0.6 GiB of its memory in use",
    )
    assert fake_nvml.calls == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"processes": [{"pid": os.getpid(), "memory_bytes": 2**31}]},
         f"{program_of(os.getpid())} (pid {os.getpid()}, 2.0 GiB)"),
        ({"memory_reserved_bytes": 3 * 2**30}, "3.0 GiB held by processes not visible from here"),
    ],
    ids=["process", "memory"],
)  # fmt: skip
def test_a_busy_gpu_names_who_uses_it(
    examine: Examine, fake_nvml: FakeMachine, facts: dict[str, object], words: str
) -> None:
    """A process fails its check, with its program, pid and memory, and so does memory that nobody listed holds."""
    fake_nvml.gpu().update(**facts)
    finding = only(examine(check="gpu-idle"))
    assert finding.status == "failed"
    assert words in finding.found


def test_a_run_that_measures_now(examine: Examine) -> None:
    """It is a warning with its process, run and folder; without one the check passes."""
    assert only(examine(check="running")).status == "ok"
    with hold_devices([CPU], "first in /runs/first", lambda _: None, 0):
        finding = only(examine(check="running"))
    assert finding.status == "warning"
    assert finding.found.startswith(f"cpu is in use by process {os.getpid()} (run first in /runs/first) since ")


def test_a_run_that_measures_on_a_gpu(examine: Examine, fake_nvml: FakeMachine) -> None:
    """On a machine with GPUs theirs are the locks that count."""
    uuid = fake_nvml.gpu().uuid
    with hold_devices([uuid], "first", lambda _: None, 0):
        finding = only(examine(check="running"))
    assert (finding.status, finding.found.startswith(f"{uuid} is in use by process")) == ("warning", True)


@pytest.mark.parametrize(
    ("load", "gpu", "status"),
    [
        (CpuLoad(1.9, 2, "pytest (process 7, 1.8)"), False, "warning"),
        (CpuLoad(0.1, 2), False, "ok"),
        (CpuLoad(0.9, 2), True, "ok"),
        (CpuLoad(1.9, 2), True, "warning"),
        (None, False, "skipped"),
    ],
    ids=["busy", "idle", "idle enough for a GPU", "too busy for a GPU", "not counted"],
)
def test_cores_that_something_else_uses(
    monkeypatch: pytest.MonkeyPatch, load: CpuLoad | None, *, gpu: bool, status: str
) -> None:
    """Busy cores are a warning that names who uses most, on a GPU machine from half of them on."""
    monkeypatch.setattr("perfgate.doctor.machine_checks.look_at_cores", lambda: load)
    finding = check_load(gpu=gpu)
    assert finding.status == status
    assert load is None or finding.found == str(load)


def test_whether_processes_have_a_cgroup(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is said what ends them, what that cannot do, why, and how a cgroup is had."""
    why = "none can be made below /x: Permission denied"
    monkeypatch.setattr("perfgate.doctor.machine_checks.why_none", lambda: why)
    finding = only(examine(check="processes"))
    assert (finding.status, finding.found, finding.mend) == (
        "warning",
        f"subreaper: a trial fails if it leaves a daemon that forks too fast to be found. No cgroup: {why}",
        "systemd-run --user --scope -p Delegate=yes perfgate run ...; on a runner, Delegate=yes in its service.",
    )
    monkeypatch.setattr("perfgate.doctor.machine_checks.why_none", lambda: "")
    finding = only(examine(check="processes"))
    assert (finding.status, finding.mend) == ("ok", "")
    assert finding.found.startswith("cgroup: ")


def test_only_visible_gpus_count(examine: Examine, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may use the GPUs that CUDA_VISIBLE_DEVICES hides; with all hidden there is nothing to look at."""
    busy = {"processes": [{"pid": 1, "memory_bytes": 2**30}]}
    FakeMachine.build(fake_nvml.file, busy, {})
    assert [one.status for one in examine(check="gpu-idle")] == ["failed", "ok"]
    assert only(examine(check="gpu")).found.endswith("a run takes the first that its engine needs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert only(examine(check="gpu-idle")).status == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert only(examine(check="gpu")).status == "skipped"


def test_a_gpu_that_has_fallen_off_the_bus(examine: Examine, fake_nvml: FakeMachine) -> None:
    """A lost GPU fails its check in the driver's words; all others are made."""
    fake_nvml.gpu().update(lost=True)
    findings = examine()
    assert next(one for one in findings if one.check == "gpu").status == "failed"
    assert {one.check for one in findings} >= {"state-folder", "model", "subject"}


def test_clocks_that_are_observed_need_no_rights(examine: Examine, fake_nvml: FakeMachine, tmp_path: Path) -> None:
    """A scenario that only observes clocks is fine where locking is not permitted."""
    fake_nvml.gpu().update(permission=False)
    assert only(examine(str(scenario_file(tmp_path)), check="clock-lock")).status == "ok"


def test_a_clock_that_the_gpu_cannot_hold(examine: Examine, fake_nvml: FakeMachine, tmp_path: Path) -> None:
    """A clock between those that the GPU knows fails, and the nearest ones are named; nothing is locked."""
    scenario = scenario_file(tmp_path, more="clocks: {mode: lock, sm_mhz: 1501}")
    finding = only(examine(str(scenario), check="clock-lock"))
    assert finding.status == "failed"
    assert "the SM clock cannot be held at 1501 MHz" in finding.found
    assert "1500" in finding.mend
    assert fake_nvml.calls == []


@pytest.mark.parametrize(
    ("user", "capability", "helper", "means"),
    [
        (0, True, "", "as root"),
        (0, False, "", None),
        (1000, False, "", None),
        (1000, False, "/bin/true", "by /bin/true"),
        (1000, False, "/no/such/helper", None),
        (1000, False, "sudo -n /bin/true", "by sudo -n /bin/true"),
        (1000, False, "sudo -n /bin/false", None),
        (1000, False, "sudo -n '/bin/true", None),
    ],
    ids=["root", "root in a container", "user", "helper", "no helper", "sudo permits", "sudo refuses", "open quote"],
)
def test_whether_clocks_may_be_locked(  # noqa: PLR0913, PLR0917 (fixtures and cases)
    examine: Examine,
    fake_nvml: FakeMachine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    capability: bool,  # noqa: FBT001
    helper: str,
    means: str | None,
) -> None:
    """Locking is possible as root with CAP_SYS_ADMIN, or by a helper that is there and permitted; it is never tried."""
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\n[ "$*" = "-n -l /bin/true reset {fake_uuid(0)}" ]\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("perfgate.doctor.gpu_checks.os.geteuid", lambda: user)
    monkeypatch.setattr("perfgate.doctor.gpu_checks.has_capability", lambda number: capability and number == 21)
    monkeypatch.setenv("PERFGATE_CLOCKS_HELPER", helper)
    finding = only(examine(str(scenario_file(tmp_path, more=LOCKING)), check="clock-lock"))
    assert finding.status == ("failed" if means is None else "ok")
    assert means is None or finding.found == f"tiny: SM at 1500 MHz, to be set {means}; not tried"
    assert fake_nvml.calls == []


def lease_of(boot: str) -> clock_lease.Lease:
    """A lease on the first GPU."""
    return clock_lease.Lease(
        uuid=fake_uuid(0), run="killed", pid=1, boot_id=boot, since="2026-01-01T00:00:00Z", sm_mhz=1500
    )


def test_a_lock_that_a_killed_run_left(examine: Examine, fake_nvml: FakeMachine, state_of_its_own: Path) -> None:
    """The lease of a dead run is a warning with the command that undoes it, which doctor itself does not do."""
    file = state_of_its_own / f"{fake_uuid(0)}{clock_lease.SUFFIX}"
    file.write_text(lease_of(boot_id()).model_dump_json())
    finding = only(examine(check="stale-leases"))
    assert (finding.status, finding.mend) == ("warning", "perfgate clocks reset")
    assert "by run killed (pid 1)" in finding.found
    assert file.exists()
    assert fake_nvml.calls == []


@pytest.mark.usefixtures("fake_nvml")
def test_leases_that_need_no_mending(examine: Examine, state_of_its_own: Path) -> None:
    """A lease from before the last boot means nothing; that of a living run is a run to wait for."""
    file = state_of_its_own / f"{fake_uuid(0)}{clock_lease.SUFFIX}"
    file.write_text(lease_of("another boot").model_dump_json())
    assert only(examine(check="stale-leases")).status == "ok"
    file.unlink()
    hold = clock_lease.take(lease_of(boot_id()))
    try:
        finding = only(examine(check="stale-leases"))
    finally:
        hold.drop()
    assert (finding.status, finding.mend) == ("warning", "Wait for that run.")


def test_a_folder_that_cannot_be_written() -> None:
    """A folder where nothing can be written fails; one that is to be made is judged by where it will lie."""
    assert check_folder(RUNS_FOLDER, Path("/proc/runs")).status == "failed"
    Path("file").touch()
    assert check_folder(RUNS_FOLDER, Path("file")).found == "file is not a folder"
    finding = check_folder(RUNS_FOLDER, Path("far/away/runs"))
    assert finding.status == "ok"
    assert finding.found.startswith(f"far/away/runs, which is to be made in {Path.cwd()}, (")
    assert not Path("far").exists()
    Path("runs").mkdir()
    assert check_folder(RUNS_FOLDER, Path("runs")).found.startswith("runs (")


@pytest.mark.usefixtures("fake_nvml")
def test_a_state_folder_that_cannot_be_made(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a state folder both what lies there and the folder itself fail, and the rest is still looked at."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "file" / "state"))
    status = {finding.check: finding.status for finding in examine()}
    assert status["state-folder"] == status["stale-leases"] == "failed"
    assert status["runs-folder"] == "ok"


def test_nothing_of_the_folder_that_doctor_is_run_in_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module called like ours in somebody's checkout is not run by the second process that tries a lock."""
    (tmp_path / "filelock.py").write_text("open('trap', 'w')\n")
    monkeypatch.chdir(tmp_path)

    assert check_folder(RUNS_FOLDER, tmp_path / "runs").status == "ok"
    assert not Path("trap").exists()


class NoLock(contextlib.nullcontext[None]):
    """A lock that everybody gets."""

    def acquire(self, timeout: float) -> None:
        """Let anybody in."""


def test_locks_that_do_not_exclude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where two processes get one lock at the same time the folder fails, however local it is."""
    monkeypatch.setattr("perfgate.doctor.folders.FileLock", lambda _: NoLock())
    finding = check_folder(STATE_FOLDER, tmp_path)
    assert finding.status == "failed"
    assert "two processes held one lock" in finding.found


def test_a_state_folder_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Host locks on a network file system are a warning; run folders may lie there if its locks work."""
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    inner = tmp_path / "inner"
    inner.mkdir()
    finding = check_folder(STATE_FOLDER, inner)
    assert finding.status == "warning"
    assert "(nfs4) is on another machine" in finding.found
    assert check_folder(RUNS_FOLDER, inner).status == "ok"


def test_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, examine: Examine) -> None:
    """Less than 2 GiB of disk or 8 GiB of memory left is a warning with what is left."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**31 - 1))
    assert check_disk(tmp_path).status == "warning"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**31))
    assert check_disk(tmp_path).status == "ok"
    for free, status in ((2**33 - 1, "warning"), (2**33, "ok")):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert only(examine(check="memory")).status == status


def test_a_model_on_disk(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with dummy weights needs its config, one with real weights needs them, and memory for them."""
    file = scenario_file(tmp_path)
    assert only(examine(str(file), check="model")).found.endswith("model, dummy weights")
    file.write_text(file.read_text().replace("{config: model}", "{path: model}"))
    assert only(examine(str(file), check="model")).status == "failed"
    with (tmp_path / "model" / "weights.safetensors").open("wb") as stream:
        stream.truncate(10 * 2**30)  # takes no room
    assert only(examine(str(file), check="model")).found.endswith("10.0 GiB of weights")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=9 * 2**30))
    assert only(examine(str(file), check="memory")).status == "warning"


def test_a_model_of_the_hub(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub model is sought in the cache that engines use, at its revision, and must be whole; the rest is fetched."""
    file = scenario_file(tmp_path)
    file.write_text(file.read_text().replace("{config: model}", "{hub: org/name, revision: 0123abc}"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    fetch = "hf download org/name --revision 0123abc"
    finding = only(examine(str(file), check="model"))
    assert (finding.status, finding.mend) == ("warning", fetch)
    snapshot = tmp_path / "hf/hub/models--org--name/snapshots/0123abcdef"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/missing")
    assert "fetching was broken off" in only(examine(str(file), check="model")).found
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").write_bytes(b"weights")
    assert only(examine(str(file), check="model")).status == "ok"


def subject_words(tmp_path: Path, mode: str = "") -> list[str]:
    """A base whose torch and vllm are stand-ins."""
    if not (tmp_path / "stub").exists():
        write_stub(tmp_path / "stub")
    words = (f"python={sys.executable}", f"path={tmp_path / 'stub'}", f"env.STUB_MODE={mode}")
    return [part for word in words for part in ("--base", word)]


def test_a_subject_that_imports(examine: Examine, tmp_path: Path) -> None:
    """A subject is imported as a trial imports it, and its versions are reported; twins are looked at once."""
    words = subject_words(tmp_path)
    finding = only(examine(*words, "--head", "args.max_num_seqs=4", check="subject"))
    assert finding.status == "ok"
    assert finding.found.startswith(f"base and head ({sys.executable}): python ")
    assert finding.found.endswith("torch 8.8.stub, vllm 9.9.stub")


def test_subjects_that_do_not_import(examine: Examine, tmp_path: Path) -> None:
    """A subject that cannot import fails in its own words, and so does one that is not there at all."""
    words = subject_words(tmp_path, "import fails")
    base, head = examine(*words, "--head", "python=/no/such/python", check="subject")
    assert base.status == head.status == "failed"
    assert base.found.endswith("ImportError: libcudart.so.99: cannot open shared object file")
    assert head.found == "head: python=/no/such/python: no such program"


@pytest.mark.slow
@pytest.mark.engine(starts=1)
def test_a_real_subject(examine: Examine, engine_python: str) -> None:
    """A real vLLM is imported, and reports the versions that a trial of it would."""
    finding = only(examine("--base", f"python={engine_python}", check="subject"))
    assert finding.status == "ok", finding.found
    assert re.search(r"python 3\.\d+\.\d+, torch \d\S+, vllm \d\S+$", finding.found)


def test_a_subject_whose_import_hangs(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that does not end is ended and fails."""
    monkeypatch.setattr("perfgate.doctor.machine_checks.IMPORT_TIMEOUT_S", 1.0)
    words = subject_words(tmp_path)
    (tmp_path / "stub" / "torch.py").write_text("import time; time.sleep(600)")
    finding = only(examine(*words, check="subject"))
    assert finding.status == "failed"
    assert "no end within 1 s" in finding.found


@pytest.mark.usefixtures("fake_nvml")
def test_deep_fails_where_profilers_are_missing(examine: Examine, tmp_path: Path) -> None:
    """On a GPU the profilers asked for by --deep must be there; without --deep their absence is a warning."""
    words = subject_words(tmp_path)
    assert {one.check: one.status for one in examine(*words)}["nsys"] == "warning"
    status = {one.check: one.status for one in examine(*words, "--deep")}
    assert (status["nsys-trace"], status["ncu-count"]) == ("failed", "failed")


def test_deep_leaves_gpus_alone_that_a_run_holds(
    examine: Examine, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs would spoil that run's trials: they are not run, and the warning names the holder."""
    monkeypatch.setattr("perfgate.doctor.machine_checks.BUSY_WAIT_S", 0.1)
    monkeypatch.setattr(profilers, "try_nsys", None)
    with hold_devices([fake_nvml.gpu().uuid], "first", lambda _: None, 0):
        found = [one for one in examine("--deep") if one.check in {"nsys-trace", "ncu-count"}]
    assert [(one.status, one.mend) for one in found] == [("warning", "Wait for that run.")] * 2
    assert f"still in use by process {os.getpid()} (run first)" in found[0].found


def test_deep_holds_the_gpus_meanwhile(
    examine: Examine, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, state_of_its_own: Path
) -> None:
    """A run that comes while its programs use the GPUs waits for them."""
    seen: list[str] = []

    def look(*_: object, **__: object) -> Finding:
        seen.append((state_of_its_own / f"{fake_nvml.gpu().uuid}.holder").read_text())
        return profilers.NSYS_TRACE.ok("looked")

    monkeypatch.setattr(profilers, "try_nsys", look)
    examine("--deep")
    assert ["(run perfgate doctor --deep)" in one for one in seen] == [True]


@pytest.mark.usefixtures("fake_nvml")
def test_deep_where_gpus_cannot_be_held(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a state folder its programs are not run."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "file" / "state"))
    (finding,) = examine("--deep", check="nsys-trace")
    assert finding.status == "warning"
    assert "the GPUs cannot be held" in finding.found


DIAGNOSIS = Diagnosis(
    deep=False,
    findings=(
        Finding(check="disk", status="ok", found="60.0 GiB free", why="Room."),
        Finding(check="nsys", status="warning", found="no nsys on PATH", why="Traces show more.", mend="Install it."),
        Finding(
            check="subject", status="failed", found="base fails\n*Error*: <x>\x1b[31m", why="It must.", mend="Mend it."
        ),
        Finding(check="model", status="skipped", found="no scenario named", why="It is fetched before."),
    ),
)


def test_text() -> None:
    """A terminal gets a line a check, reason and remedy where something is amiss, and no control characters."""
    assert render("doctor", "text", DIAGNOSIS) == (
        "  ok       disk     60.0 GiB free\n"
        "  warning  nsys     no nsys on PATH\n"
        "      why: Traces show more.\n"
        "    -> Install it.\n"
        "  FAILED   subject  base fails\n"
        "      *Error*: <x>\ufffd[31m\n"
        "      why: It must.\n"
        "    -> Mend it.\n"
        "  skipped  model    no scenario named\n"
        "\n"
        "NOT READY: 1 check failed; 1 warning, 1 check skipped.\n"
    )


def test_markdown() -> None:
    """A pipe gets Markdown in which what programs said is fenced."""
    assert render("doctor", "markdown", DIAGNOSIS) == (
        "**NOT READY: 1 check failed; 1 warning, 1 check skipped.**\n\n"
        "- ok `disk`: 60.0 GiB free\n\n"
        "- warning `nsys`: no nsys on PATH. Traces show more. _Install it._\n\n"
        "- FAILED `subject`: base fails. It must. _Mend it._\n\n"
        "```text\n*Error*: <x>\ufffd[31m\n```\n\n"
        "- skipped `model`: no scenario named\n"
    )
