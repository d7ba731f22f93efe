"""Cores for each station: what measures side by side keeps to its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from perfgate.machine.fingerprint import SYSTEM

CORES_PER_GPU: Final = 4
"""An engine's busy threads: its own, those of CUDA, of the tracer, and one to spare."""


def shares_of_cores(stations: Sequence[Sequence[int | None]], folder: Path = SYSTEM) -> list[frozenset[int]]:
    """The logical cores of each station: of its GPUs' memory nodes, by its GPUs there, no core in two stations.

    What is started on cores of a node takes its memory there too, as long as nothing else is asked of the kernel
    (numa(7), first touch). A station of which a node is not known, or which would get fewer than :data:`CORES_PER_GPU`
    for each of its GPUs, gets none of its own and may use all.

    Args:
        stations: The memory node of each GPU of each.
        folder: Where the kernel describes its processors.
    """
    shares = [frozenset[int]()] * len(stations)
    placed = [() if None in nodes else tuple(nodes) for nodes in stations]
    for node in {*itertools.chain(*placed)}:
        allowed = _numbers(folder / f"node/node{node}/cpulist") & os.sched_getaffinity(0)
        # Both threads of a core go to one station.
        siblings = (_numbers(folder / f"cpu/cpu{n}/topology/thread_siblings_list") & allowed | {n} for n in allowed)
        cores = set(siblings)
        gpus, in_order = [nodes.count(node) for nodes in placed], iter(sorted(cores, key=min))
        for number, count in enumerate(gpus):
            share = itertools.islice(in_order, len(cores) * count // sum(gpus))
            shares[number] |= frozenset(itertools.chain(*share))
    return [
        share if len(share) >= CORES_PER_GPU * len(nodes) else frozenset()
        for share, nodes in zip(shares, stations, strict=True)
    ]


def _numbers(file: Path) -> frozenset[int]:
    """The numbers that a list of the kernel names, like ``0-3,8``; none where it has no such file."""
    try:
        parts = [part.split("-") for part in file.read_text().strip().split(",") if part]
    except OSError:
        return frozenset()
    return frozenset(n for part in parts for n in range(int(part[0]), int(part[-1]) + 1))
