"""Wall time of cells on the GPUs of a host as one Ray node, a cell on each at once, beside that of one GPU alone.

``python research/ray_on_gpus.py SCENARIO... --base python=PYTHON --gpus 0,1 --minutes 12``

Base against base, so both end with 0. A trial before them has read from the disk what engines import, and each keeps
compile caches of its own, empty at first, so that both begin alike. ``--way ray`` or ``--way alone`` measures one of
them, so that a visit has work for the other GPUs meanwhile. Each gets an equal part of the time that is left. Starts a
Ray node of its own, beside those that the host may have, and ends it. Prints a line for each way, and ends with the
worse status.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfgate.machine.supervisor import PR_SET_PDEATHSIG

RUN = [sys.executable, "-m", "perfgate", "run"]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
ADDRESS = "127.0.0.1"
STARTED = "--block"
"""Ray says what this option does once its node is there."""
END_S = 20.0
"""For a node to end."""
LEAST_MIN = 0.1


@contextlib.contextmanager
def ray_node(gpus: int, environment: Mapping[str, str]) -> Iterator[str]:
    """The address of a Ray node with ports and a folder of its own, which ends with the block, or with this process.

    It has a session of its own, so that Ctrl-C does not take it from the run that ends engines on it.
    """
    port, client = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        words = [*RAY, "start", "--head", "--block", "--node-ip-address", ADDRESS, "--port", port, "--temp-dir", folder,
                 "--min-worker-port", "0", "--max-worker-port", "0", "--num-gpus", str(gpus),
                 "--include-dashboard", "false"]  # fmt: skip
        if importlib.util.find_spec("grpc"):  # then a head node has a server for Ray's client, always on one port
            words += ["--ray-client-server-port", client]
        with subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 (there are no threads)
        ) as node:
            try:
                if not any(STARTED in line for line in node.stdout or ()):
                    raise SystemExit(f"Ray ended with {node.wait()}")
                yield f"{ADDRESS}:{port}"
            finally:
                node.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.wait(END_S)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Have this process asked to end when its parent has: who is killed ends nobody."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((ADDRESS, 0))) for _ in range(count)]
        return [str(one.getsockname()[1]) for one in sockets]


def status_of(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit status of a command; one that Ctrl-C reaches as well has the time that it takes to end its engines."""
    with subprocess.Popen(words, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def measure(name: str, words: Sequence[str], environment: Mapping[str, str], minutes: float) -> int:
    """Run perfgate for so long at most, and print what that took; its exit status."""
    begun_s = time.monotonic()
    status = status_of([*RUN, *words, "--budget", f"{max(minutes, LEAST_MIN):.2f}"], environment)
    print(f"{name}: exit {status} after {(time.monotonic() - begun_s) / 60:.2f} min", flush=True)
    return status


def main() -> None:
    """Measure both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path, nargs="+", help="as many cells as GPUs, or more")
    parser.add_argument("--base", required=True, help="the build, as perfgate's --base takes it")
    parser.add_argument("--gpus", required=True, help="indices")
    parser.add_argument("--minutes", type=float, required=True, help="until everything has ended")
    parser.add_argument("--way", choices=["ray", "alone"], action="append", help="default: both")
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    gpus = given.gpus.split(",")
    ways = given.way or ["ray", "alone"]
    both = [*map(str, given.scenario), "--base", given.base, "--head", given.base]
    visible = {"ray": given.gpus, "alone": gpus[0]}

    def share_min(ways: int) -> float:
        left_s: float = until_s - time.monotonic()
        return left_s / 60 / ways

    before = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[0], "PERFGATE_CACHES": "0"}
    quick = [str(given.scenario[0]), "--base", given.base, "--quick"]
    measure("before them", quick, before, share_min(1 + len(ways)))
    statuses = []
    for place, way in enumerate(ways):
        with tempfile.TemporaryDirectory(prefix="caches-", ignore_cleanup_errors=True) as caches:
            own = {"CUDA_VISIBLE_DEVICES": visible[way], "PERFGATE_CACHES": caches, "RAY_USAGE_STATS_ENABLED": "0"}
            environment = {**os.environ, **own}
            with contextlib.ExitStack() as stack:
                on = ["--on", stack.enter_context(ray_node(len(gpus), environment))] if way == "ray" else []
                statuses.append(measure(way, [*both, *on], environment, share_min(len(ways) - place)))
    raise SystemExit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
