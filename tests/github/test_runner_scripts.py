"""What .github/runner installs on a host: the installer, the clock helper that runs as root, and the scripts' form."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fake_nvml import NVML_ERROR_NOT_SUPPORTED, FakeMachine
from runner_machine import HOOKS, RUNNER, Host

UUID = "GPU-00000000-0000-0000-0000-000000000000"
HELPER = "usr/local/sbin/perfgate-clocks"


@pytest.fixture
def host(tmp_path: Path, fake_nvml: FakeMachine, state_of_its_own: Path) -> Host:
    """A host on which nothing is installed yet."""
    return Host(tmp_path, fake_nvml, state_of_its_own)


@pytest.fixture
def installed(host: Host) -> Host:
    """A host with everything in place."""
    ended = host.install()
    assert ended.returncode == 0, ended.stderr
    return host


def test_scripts_are_clean_by_shellcheck() -> None:
    """Shellcheck has nothing to say of any script, hints included."""
    scripts = [file for file in RUNNER.iterdir() if file.suffix in {".sh", ".bash"} or os.access(file, os.X_OK)]
    scripts += [RUNNER.parent / "actions" / "install", RUNNER.parents[1] / ".ci" / "actionlint"]
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck comes with the development group")

    ended = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True, check=False)

    assert (len(scripts), ended.stdout, ended.returncode) == (7, "", 0)


# --- the installer


def test_dry_run_writes_nothing(host: Host) -> None:
    """--dry-run names every file and shows what would be written, and leaves the host as it was.

    Of the runner's .env it shows only the lines about the hooks: others may be secrets.
    """
    (host.runner / ".env").write_text("LANG=C.UTF-8\nTOKEN=secret\n")
    before = host.files()

    ended = host.install("--dry-run")

    assert ended.returncode == 0, ended.stderr
    assert before == host.files()
    for written in ("etc/sudoers.d/perfgate", HELPER, f"{HOOKS}/job-started.sh", f"{HOOKS}/runner.conf"):
        assert f"would write {host.root}/{written}, mode" in ended.stdout
    assert "ACTIONS_RUNNER_HOOK_JOB_STARTED=/usr/local/lib/perfgate-runner/job-started.sh" in ended.stdout
    assert "would write" in (uninstalled := host.install("--uninstall", "--dry-run").stdout)
    assert "secret" not in ended.stdout + uninstalled


def test_installation_has_the_right_modes(installed: Host) -> None:
    """Only the owner may change what is installed, sudo accepts its rule, and the state folder hands on its group."""
    files = installed.files()

    assert {
        HELPER: 0o755,
        "etc/sudoers.d/perfgate": 0o440,
        "etc/tmpfiles.d/perfgate.conf": 0o644,
        f"{HOOKS}/hook.bash": 0o644,
        f"{HOOKS}/job-completed.sh": 0o755,
        f"{HOOKS}/job-started.sh": 0o755,
        f"{HOOKS}/runner.conf": 0o644,
        "run/lock/perfgate": 0o3775,
    }.items() <= files.items()
    group = (installed.root / "run/lock/perfgate").group()
    assert (
        f"d /run/lock/perfgate 3775 root {group} -\n" in (installed.root / "etc/tmpfiles.d/perfgate.conf").read_text()
    )


def test_sudo_rule_names_the_user_and_only_the_helper(installed: Host) -> None:
    """One user, one program without wildcards; visudo accepts the rule where there is one."""
    rule = (installed.root / "etc/sudoers.d/perfgate").read_text().splitlines()

    assert f"User_Alias PERFGATE_RUNNER = {pwd.getpwuid(os.getuid()).pw_name}" in rule
    assert "Cmnd_Alias PERFGATE_CLOCKS = /usr/local/sbin/perfgate-clocks" in rule
    assert [line for line in rule if "NOPASSWD" in line] == ["PERFGATE_RUNNER ALL = (root) NOPASSWD: PERFGATE_CLOCKS"]
    if visudo := shutil.which("visudo", path=f"{os.environ['PATH']}:/usr/sbin"):
        subprocess.run([visudo, "-cqf", installed.root / "etc/sudoers.d/perfgate"], check=True)


def test_env_of_the_runner_keeps_its_other_lines(host: Host) -> None:
    """Installing twice names each hook once, uninstalling takes only that away; lines and mode of .env stay."""
    env = host.runner / ".env"
    env.write_text("LANG=C.UTF-8\nTOKEN=secret\n")
    env.chmod(0o600)

    assert [host.install().returncode, host.install().returncode] == [0, 0]
    assert env.read_text().splitlines() == [
        "LANG=C.UTF-8",
        "TOKEN=secret",
        "ACTIONS_RUNNER_HOOK_JOB_STARTED=/usr/local/lib/perfgate-runner/job-started.sh",
        "ACTIONS_RUNNER_HOOK_JOB_COMPLETED=/usr/local/lib/perfgate-runner/job-completed.sh",
    ]
    assert host.install("--uninstall").returncode == 0
    assert env.read_text() == "LANG=C.UTF-8\nTOKEN=secret\n"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert not [file for file in host.files() if "perfgate" in file and file != "run/lock/perfgate"]


def test_installer_refuses_what_would_do_harm(host: Host, tmp_path: Path) -> None:
    """Foreign hooks, an .env or state folder that is a link, unknown users and programs stop it before it writes."""
    env = host.runner / ".env"
    before = host.files()

    assert "no such user" in host.install(user="nobody-of-this-name").stderr
    assert "no name of a user" in host.install(user="ALL = (ALL) ALL #").stderr
    assert "--perfgate: no program" in host.install("--perfgate", "/nowhere/perfgate").stderr
    assert "unknown word: --dryrun" in host.install("--dryrun").stderr
    assert before == host.files()
    env.write_text("ACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/ours.sh\n")
    assert "names other hooks" in host.install().stderr
    env.unlink()
    env.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in host.install().stderr
    assert not (host.root / HELPER).exists()
    env.unlink()
    (tmp_path / "etc").mkdir(mode=0o755)
    (host.root / "run/lock").mkdir(parents=True)
    (host.root / "run/lock/perfgate").symlink_to(tmp_path / "etc")
    assert "run/lock/perfgate is a link" in host.install().stderr
    assert stat.S_IMODE((tmp_path / "etc").stat().st_mode) == 0o755


def test_root_runs_only_what_root_alone_can_change(tmp_path: Path) -> None:
    """A program is refused where a folder or link on its way is another user's or can be written by others."""
    (tmp_path / "nvidia-smi").symlink_to("/usr/bin/env")

    def said(program: str | Path) -> str:
        user = pwd.getpwuid(os.getuid()).pw_name
        words = [str(RUNNER / "install"), "--dry-run", "--user", user, "--runner-folder", "/usr/local"]
        words += ["--perfgate", "/usr/bin/env", "--nvidia-smi", str(program)]
        environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stderr

    assert "must be root's and writable by nobody else" in said(tmp_path / "nvidia-smi")
    assert "must be root's" in said(f"/usr/bin/../..{tmp_path}/nvidia-smi")
    assert "root's" not in said("/usr/bin/env")
    assert "root's" not in said("/usr/./bin//../bin/env")


def _bait(folder: Path, program: str, before: str) -> None:
    """Put a program before the real one on the PATH that does something first: a race that is always lost."""
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(f'#!/bin/bash\n{before}\nexec {shutil.which(program)} "$@"\n')
    (folder / program).chmod(0o755)


def test_an_env_that_is_exchanged_meanwhile(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in the place of the runner's .env, put there after it was looked at, is not read."""
    env, secret = host.runner / ".env", tmp_path / "secret"
    env.write_text("LANG=C.UTF-8\n")
    secret.write_text("root:hash\n")
    secret.chmod(0o600)
    _bait(tmp_path / "bin", "grep", f"ln -sf {secret} {env}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    host.install()

    assert "LANG=C.UTF-8\n" in env.read_text()
    assert secret.read_text() == "root:hash\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_the_runners_folder_is_its_owners(fake_nvml: FakeMachine, state_of_its_own: Path) -> None:
    """Root touches the runner's .env as the folder's owner, who may keep the name of a file of root's in its place."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        host = Host(folder, fake_nvml, state_of_its_own)
        secret = folder / "secret"
        secret.write_text("root:hash\n")
        secret.chmod(0o600)
        os.chown(host.runner, 65534, 65534)

        (host.runner / ".env").hardlink_to(secret)
        refused = host.install()
        (host.runner / ".env").unlink()
        installed = host.install()
        env = (host.runner / ".env").stat()

        assert ".env cannot be read" in refused.stderr
        assert secret.read_text() == "root:hash\n"
        assert (installed.returncode, env.st_uid, env.st_gid) == (0, 65534, 65534)


# --- the clock helper


OTHER_WORDS: tuple[tuple[str, ...], ...] = (
    (), ("lock",), ("lock", UUID), ("reset", UUID, "all"), ("reset", UUID, "memory", "-pm"), ("reset", "-pm"),
    ("--gpu-reset", UUID), ("-i", UUID, "-pl", "100"),
    *(("lock", UUID, clock) for clock in
      ("99", "5001", "01500", "1500,1980", "1500 ", "1500\n", "-1500", "a[$(touch /tmp/x)]")),
    ("lock", UUID, "1500", "20001"), ("lock", UUID, "1500", ""), ("lock", UUID, "1500", "3201", "-pl"),
    *(("lock", gpu, "1500") for gpu in
      ("0", f"{UUID[:-1]}A", f"{UUID},{UUID}", f"{UUID}\n", "MIG-00000000-0000-0000-0000-000000000000")),
)  # fmt: skip


def test_helper_refuses_other_words(installed: Host) -> None:
    """Anything but its two forms ends with 2 and the usage, and nvidia-smi is not asked."""
    installed.machine.update(errors={"nvidia-smi": 255})

    for words in OTHER_WORDS:
        ended = installed.clocks(*words)

        assert ended.returncode == 2, words
        assert "usage: perfgate-clocks lock UUID SM_MHZ" in ended.stderr, words


def test_helper_locks_and_resets_one_gpu(installed: Host, fake_nvml: FakeMachine) -> None:
    """SM and memory clocks are held and given free on the GPU that is named, on no other."""
    machine = FakeMachine.build(fake_nvml.file, {}, {})
    uuid = machine.gpu(1).uuid
    seen = []

    for words in (("lock", uuid, "1500", "3201"), ("reset", uuid), ("reset", uuid, "memory")):
        status = installed.clocks(*words).returncode
        seen.append((status, machine.gpu(0).locked, machine.gpu(1).locked))

    free = (None, None)
    assert seen == [(0, free, (1500, 3201)), (0, free, (None, 3201)), (0, free, free)]


def test_helper_hands_on_what_nvidia_smi_says(installed: Host) -> None:
    """A GPU that cannot hold its memory clock keeps no SM lock, status 3; 4 is no permission, 124 a hang, 5 no tool."""
    gpu, helper = installed.machine.gpu(), installed.root / HELPER
    gpu.update(errors={"nvmlDeviceSetMemoryLockedClocks": NVML_ERROR_NOT_SUPPORTED})
    ended = installed.clocks("lock", gpu.uuid, "1500", "3201")
    assert (ended.returncode, gpu.locked) == (3, (None, None))
    assert "nvidia-smi -lmc 3201,3201: Setting locked memory clocks is not supported" in ended.stderr

    installed.machine.update(errors={"nvidia-smi": 4})
    assert installed.clocks("lock", gpu.uuid, "1500").returncode == 4
    installed.machine.update(errors={"nvidia-smi": "hang"})
    helper.write_text(helper.read_text().replace("LIMIT_S=15", "LIMIT_S=0.5"))
    assert installed.clocks("reset", gpu.uuid).returncode == 124
    installed.nvidia_smi.unlink()
    assert installed.clocks("reset", gpu.uuid).returncode == 5


def test_helper_takes_nothing_from_the_environment(installed: Host, tmp_path: Path) -> None:
    """Neither the caller's PATH, BASH_ENV and functions nor variables for nvidia-smi reach what runs as root."""
    trap, seen = tmp_path / "trap", tmp_path / "seen"
    bait = tmp_path / "bin"
    bait.mkdir()
    for program in ("env", "timeout", "logger", "id"):
        (bait / program).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (bait / program).chmod(0o755)
    (tmp_path / "rc").write_text(f"touch {trap}\n")
    installed.nvidia_smi.write_text(f"#!/bin/sh\nenv >{seen}\n")
    variables = {
        "PATH": f"{bait}:{os.environ['PATH']}",
        "BASH_ENV": str(tmp_path / "rc"),
        "BASH_FUNC_env%%": f"() {{ touch {trap}; }}",
        "NVIDIA_SMI": str(bait / "env"),
        "SHELLOPTS": "xtrace",
        "LD_AUDIT": "/nowhere.so",
    }

    ended = installed.clocks("reset", UUID, **variables)

    assert ended.returncode == 0, ended.stderr
    assert not trap.exists()
    assert {line.partition("=")[0] for line in seen.read_text().splitlines()} <= {"PATH", "LC_ALL", "PWD", "SHLVL", "_"}
