"""Kill processes that lock and release GPU clocks at random moments, and see that no lock is left without a lease.

``python research/clock_kills.py [--kills 200] [--seed 1]``

Each victim locks and releases the clocks of two GPUs of ``tests/fake_nvml.py`` without a pause, and gets SIGKILL. Then
every lock must have a lease, and undoing what is stale must leave neither. Prints a table and ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "standins"), str(TESTS)]

from fake_nvml import STATE as FAKE  # noqa: E402 (the line above lets it be found)
from fake_nvml import FakeMachine, fake_uuid  # noqa: E402

from perfgate.machine.clock_lease import find_leases  # noqa: E402
from perfgate.machine.clocks import ClockGuard, undo_stale  # noqa: E402 (which takes the pynvml of the stand-ins)
from perfgate.machine.locks import STATE  # noqa: E402
from perfgate.machine.nvml import Nvml  # noqa: E402

UUIDS = [fake_uuid(0), fake_uuid(1)]
CHOICES: tuple[tuple[int | None, int | None], ...] = (
    (1500, None),
    (1200, None),
    (1500, 2201),
    (None, None),
)
WINDOW_S = 0.15
"""Kills come within so long after the first lock; locking both GPUs takes about a tenth of it."""


def suffer(machine: FakeMachine, choices: random.Random) -> int:
    """Start a victim and return its pid once it has begun."""
    pid = os.fork()
    if pid == 0:
        with Nvml() as nvml, ClockGuard(nvml, "kills") as guard:
            while True:
                guard.apply(UUIDS[: choices.randint(1, 2)], *choices.choice(CHOICES))
    while not machine.calls:
        time.sleep(0.001)
    return pid


def kill_once(folder: Path, choices: random.Random) -> str:
    """Kill one victim and undo what it left; returns what was found in words, with ``WRONG`` in front if it was."""
    machine = FakeMachine.build(folder / "nvml.json", {}, {})
    victim = suffer(machine, choices)
    time.sleep(choices.uniform(0, WINDOW_S))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)

    locked, leased = locks(machine), leases()
    with Nvml() as nvml:
        undone = {lease.uuid for lease in undo_stale(nvml, UUIDS)}
    right = locked <= leased and undone == leased and not locks(machine) and not leases()
    return ("" if right else "WRONG: ") + f"{len(leased)} leased, {len(locked)} locked"


def locks(machine: FakeMachine) -> set[str]:
    """GPUs with a locked clock."""
    return {machine.gpu(index).uuid for index in range(2) if machine.gpu(index).locked != (None, None)}


def leases() -> set[str]:
    """GPUs with a lease."""
    return {lease.uuid for lease in find_leases(UUIDS)}


def main(words: Sequence[str] | None = None) -> int:
    """Kill, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    choices = random.Random(options.seed)  # noqa: S311 (no secret)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {STATE: f"{name}/state", FAKE: f"{name}/nvml.json"}
        for _ in range(options.kills):
            found[kill_once(Path(name), choices)] += 1
    print("| of two GPUs at the kill | kills |\n|---|---|")
    for what, count in sorted(found.items()):
        print(f"| {what} | {count} |")
    print(f"| all | {found.total()} |")
    return int(any(what.startswith("WRONG") for what in found))


if __name__ == "__main__":
    sys.exit(main())
