"""The client's own process: ``python -m perfgate.load.client_process REQUESTS ANSWERS [CORE ...]``.

Reads windows and writes answers in JSON lines on two descriptors. It is pinned to the cores it is given, goes before
other processes where the system permits it (``sched(7)``, the lowest real-time priority), and collects no garbage while
a window runs: a collection takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import sys
from typing import IO, Literal

from perfgate.load.exchange import Target, Window
from perfgate.load.window_run import WindowRun
from perfgate.models import Frozen

PROTOCOL = 1


class Order(Frozen):
    """What the parent asks for.

    Args:
        v: The version of the protocol.
        id: Repeated in the answer.
        window: What to send.
        target: Where to.
    """

    v: Literal[1]
    id: int
    window: Window
    target: Target


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Drive window after window until the parent closes its end."""
    while line := requests.readline():
        order = Order.model_validate_json(line)
        run = WindowRun(order.window, order.target)
        identity = order.id
        del line, order
        gc.collect()
        gc.freeze()
        gc.disable()
        outcome = asyncio.run(run.run())
        gc.enable()
        gc.unfreeze()
        head = {"v": PROTOCOL, "id": identity, **outcome.model_dump(exclude={"answers"})}
        answers.write(json.dumps(head).encode() + b"\n")
        for answer in outcome.answers:
            answers.write(answer.model_dump_json().encode() + b"\n")
        answers.flush()


def main(arguments: list[str]) -> None:
    """Run; the arguments are numbers."""
    requests, answers, *cores = map(int, arguments)
    if cores:
        os.sched_setaffinity(0, cores)
    with contextlib.suppress(PermissionError):  # then it is late where others use its cores, and says so
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with open(requests, "rb") as orders, open(answers, "wb") as said:  # noqa: PTH123 (descriptors)
        said.write(json.dumps({"v": PROTOCOL, "id": 0}).encode() + b"\n")
        said.flush()
        serve(orders, said)


if __name__ == "__main__":
    main(sys.argv[1:])
