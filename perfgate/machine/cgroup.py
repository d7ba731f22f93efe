"""A cgroup for everything that one trial starts, where the system lets perfgate make one.

A child belongs to the cgroup of its parent from its first instruction on, and ``cgroup.kill`` ends all of a cgroup at
once (cgroups(7); Linux 5.14 and newer, cgroup v2). So nothing outlives a trial by forking faster than processes can
be listed. A program of the same user may move itself to another cgroup all the same: who ends a trial looks below its
supervisor too.

Cgroups are made below perfgate's own, which must be writable: systemd makes it so with ``Delegate=yes``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote

from perfgate.machine.processes import owner_mark, pid_namespace, wait_until

PROC: Final = Path("/proc/self")
EMPTY_S: Final = 2.0
"""How long what was killed is given to leave its cgroup; it takes milliseconds."""
PREFIX = "perfgate"
"""How the name of each begins; what has another is not ours."""
_NAME: Final = re.compile(r"-(\d+)-(.+)-([0-9a-f]{1,32})")
"""The rest of it."""
_MEMBER: Final = 'echo 0 > "$0" && echo in && read -r line'
"""Joins a cgroup as a trial's program does, says so, and stays."""


@dataclass(frozen=True)
class Group:
    """A cgroup of ours, and whose it is (:func:`perfgate.machine.processes.owner_mark`)."""

    path: Path
    mark: str

    @classmethod
    def make(cls, mark: str, token: str, below: Path) -> Self:
        """Make one; raises OSError where that is not permitted."""
        path = below / f"{PREFIX}-{pid_namespace()}-{quote(mark, safe='')}-{token}"
        path.mkdir()
        return cls(path, mark)

    @property
    def token(self) -> str:
        """What tells it from others with its mark."""
        return self.path.name.rpartition("-")[2]

    @property
    def door(self) -> Path:
        """The file through which a process joins, by writing 0."""
        return self.path / "cgroup.procs"

    def pids(self) -> tuple[int, ...]:
        """Its processes, without zombies, and those of cgroups that a program made below it."""
        pids: list[int] = []
        for folder, _, _ in os.walk(self.path):
            # Removed meanwhile, or a threaded cgroup: the one above it names its processes.
            with contextlib.suppress(OSError):
                pids += map(int, Path(folder, "cgroup.procs").read_text().split())
        return tuple(pid for pid in pids if pid > 0)  # 0: a process of another pid namespace

    def kill(self) -> None:
        """Send SIGKILL to all of them, and to what they fork meanwhile."""
        try:
            file = os.open(self.path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, b"1")
            finally:
                os.close(file)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # somebody else has removed it
                raise

    def remove(self) -> bool:
        """Take it away, with those below it; ``False`` where a process is still in it."""
        return wait_until(self._removed, EMPTY_S, 0.001)

    def _removed(self) -> bool:
        folders = [Path(folder) for folder, _, _ in os.walk(self.path, topdown=False)]
        try:
            for folder in folders:
                folder.rmdir()
        except FileNotFoundError:
            return not self.path.exists()
        except OSError:  # EBUSY: whoever called kill() waits for the last process to leave
            return False
        return True


def make_group(mark: str, token: str) -> Group | None:
    """A cgroup for what is about to be started; ``None`` where none can be had, see :func:`why_none`.

    Its token, hexadecimal digits, tells it from others with this mark.

    Raises:
        OSError: One could be had before, but this one cannot: too many below perfgate's own, for instance.
    """
    folder = own_folder()
    return None if folder is None or _trouble(folder) else Group.make(mark, token, folder)


def why_none() -> str:
    """Why nobody can have a cgroup, in words; empty where they can. One is tried, once a process."""
    folder = own_folder()
    return "no cgroup v2 is mounted here" if folder is None else _trouble(folder)


def groups() -> Iterator[Group]:
    """Those made below perfgate's own cgroup in this pid namespace; the pid in the mark of others is of no use here."""
    folder = own_folder()
    for path in sorted(folder.glob(f"{PREFIX}-*")) if folder is not None else ():
        name = _NAME.fullmatch(path.name.removeprefix(PREFIX))
        if name is not None and int(name[1]) == pid_namespace():
            yield Group(path, unquote(name[2]))


def own_folder(proc: Path = PROC) -> Path | None:
    """The folder of the cgroup v2 that this process is in; ``None`` where it cannot be seen from here."""
    try:
        memberships, mounts = ((proc / name).read_text().splitlines() for name in ("cgroup", "mountinfo"))
    except FileNotFoundError:  # a kernel without cgroups
        return None
    inside = [line[3:] for line in memberships if line.startswith("0::/")]
    for line in mounts:
        mount, _, kind = line.partition(" - ")
        if inside and kind.startswith("cgroup2 "):
            root, point = mount.split()[3:5]  # proc_pid_mountinfo(5): what of the hierarchy is shown, and where
            with contextlib.suppress(ValueError):  # another part of the hierarchy
                below = Path(inside[0]).relative_to(root)
                return None if ".." in below.parts else Path(point) / below
    return None


@functools.cache
def _trouble(folder: Path) -> str:
    """What goes wrong when a cgroup is made here and used; empty where nothing does."""
    try:
        group = Group.make(owner_mark("cgroup"), os.urandom(8).hex(), folder)
    except OSError as error:
        return f"none can be made below {folder}: {error.strerror}"
    try:
        return _try(group)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    finally:
        group.remove()


def _try(group: Group) -> str:
    """What goes wrong when a process joins this one and is killed with it."""
    if not (group.path / "cgroup.kill").exists():
        return "this kernel has no cgroup.kill (Linux 5.14)"
    command = ["/bin/sh", "-c", _MEMBER, str(group.door)]
    # The program ends with its standard input, and that with perfgate.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as member:  # noqa: S603 (ours)
        if not member.stdout or not member.stdout.read(1) or member.pid not in group.pids():
            return f"no process can join {group.path}"
        group.kill()
        try:
            member.wait(EMPTY_S)
        except subprocess.TimeoutExpired:
            return f"a process in {group.path} outlives it"
    return ""
