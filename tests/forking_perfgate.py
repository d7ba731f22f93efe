"""perfgate's command line, forked from a process that has imported it: a test that starts it often pays once.

Each command has its own process, folder, environment, descriptors and exit status, as if a shell had started it. Only
signals sent to what the shell started do not reach it: tests of interruptions start perfgate itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

CLIENT = f"""#!{sys.executable} -IS
import marshal, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({{address!r}})
asked = marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd()))
socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
server.sendall(asked)
sys.exit(int(server.recv(8) or b"137"))
"""
"""What stands for perfgate on PATH; no status comes from a process that was killed."""


@contextlib.contextmanager
def forking(folder: Path) -> Iterator[Path]:
    """A program ``perfgate`` in a folder.

    Variables say what is not as elsewhere: ``FAKE`` how trials are invented, ``FAKE_NVML`` which GPUs there are, and
    ``PERFGATE_TESTS_OWNER`` the variable that marks its processes, with which the names of its cgroups begin.
    """
    address = folder / "socket"
    program = folder / "perfgate"
    program.write_text(CLIENT.format(address=str(address)))
    program.chmod(0o755)
    words = [sys.executable, __file__, str(address)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield program
        server.kill()


def serve(address: str) -> None:
    """Answer until killed; a child that has ended is nobody's to wait for."""
    from few_files import SILENT, asked, linking  # noqa: PLC0415

    from perfgate import gate, rooms  # noqa: F401, PLC0415 (imported once, for all children)
    from perfgate.capture import build_digest, session, station, watched_builds  # noqa: PLC0415
    from perfgate.models import build_models  # noqa: PLC0415
    from perfgate.scenario.subject import Subject  # noqa: PLC0415

    # Their runs leave the orphans of other tests alone, and the cores, as those in the tests' own process do.
    vars(session).update(end_orphans=tuple, look_at_cores=lambda: None)
    vars(station).update(end_orphans=lambda **_: (), find_orphans=lambda _: ())
    vars(build_digest).update(ask=asked)
    vars(watched_builds).update(link_bytecode=linking(Path(address).parent / "bytecode"))
    (Path(address).parent / "bytecode").mkdir()
    build_models()
    for command in rooms.entries("commands").values():
        rooms.bring(command["run"])
    for python in (sys.executable, SILENT):
        with contextlib.suppress(build_digest.NoAnswerError):
            asked(Subject(python=python), os.environ, Path(address).parent)
    warm_up()
    gc.freeze()  # a child that searched all this for garbage would have to copy it first

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            answer(client)
        client.close()


def warm_up() -> None:
    """Run a fake and show its page: what a process does at its first run alone takes five times as long as the run."""
    from fake_collector import SAME, FakeCollector  # noqa: PLC0415
    from hand_made import BOTH, scenario_file  # noqa: PLC0415

    from perfgate import gate  # noqa: PLC0415
    from perfgate.report.formats import render  # noqa: PLC0415
    from perfgate.report.run_page import MeasuredRun  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        done = gate.run([scenario_file(Path(folder))], BOTH, runs=Path(folder), collector=FakeCollector(SAME))
        render("outcome", "html", MeasuredRun.of(done.outcome, done.folder))
        render("outcome", "markdown", done.outcome)


def answer(client: socket.socket) -> None:
    """Be the command that a client asked for, and end with it."""
    size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as stream:
        words, environment, folder = marshal.loads(stream.read(int.from_bytes(size, "big")))  # noqa: S302 (our own)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        status = run(words)
    except BaseException:  # noqa: BLE001 (as the interpreter does at its end)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(str(status).encode())
    os._exit(status)


def run(words: list[str]) -> int:
    """Its exit status."""
    import fake_nvml  # noqa: PLC0415
    from fake_collector import FakeCollector, FakeSpec  # noqa: PLC0415

    from perfgate.cli.main import main  # noqa: PLC0415
    from perfgate.machine import cgroup, children, nvml, orphans, processes  # noqa: PLC0415

    collector = None
    if "FAKE" in os.environ:
        fake = json.loads(os.environ["FAKE"])
        fake["failures"] = {int(trial): code for trial, code in fake.get("failures", {}).items()}
        collector = FakeCollector(FakeSpec(**fake))
    if fake_nvml.STATE in os.environ:
        vars(nvml)["pynvml"] = fake_nvml
    if "PERFGATE_TESTS_OWNER" in os.environ:
        owner = vars(cgroup)["PREFIX"] = os.environ["PERFGATE_TESTS_OWNER"]
        for module in (children, orphans, processes):
            vars(module)["OWNER"] = owner
    try:
        main(words, obj=collector, prog_name="perfgate")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
