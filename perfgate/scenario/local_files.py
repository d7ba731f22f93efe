"""Files that a scenario names on this machine's disk: its model, and the trace that it replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.load.arrival_trace import read_arrivals, trace_digest
from perfgate.load.arrivals import Arrived, part
from perfgate.load.shape import Load
from perfgate.units import plural


def repository_root(folder: Path) -> Path:
    """The nearest folder from ``folder`` up that holds ``.git``, ``perfgate.toml`` or ``pyproject.toml``."""
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in (".git", "perfgate.toml", "pyproject.toml")):
            return candidate
    return folder


def model_problem(folder: Path, root: Path) -> str:
    """Why a folder is not that of a model in the repository ``root``; empty where it is.

    Raises:
        OSError: It cannot be read, or RuntimeError or ValueError for a path that none can be.
    """
    if not folder.is_relative_to(root):
        return "leads out of the repository"
    config = folder / "config.json"
    if not config.is_file():
        return f"has no config.json: {folder.relative_to(root)}"
    return "" if config.resolve().is_relative_to(root) else "has a config.json that leads out of the repository"


def trace_file(scenario: Path, workload: object) -> Path | None:
    """The trace that a scenario's workload replays, absolute; ``None`` where it replays none.

    Raises:
        OSError: As :func:`model_problem` does.
    """
    if not isinstance(workload, Load) or workload.arrival.replay is None:
        return None
    return (scenario.parent / workload.arrival.replay.file).resolve()


def trace_problem(file: Path, root: Path, load: Load) -> str:
    """Why a file in the repository ``root`` cannot be replayed by a load; empty where it can.

    Raises:
        OSError: As :func:`model_problem` does.
    """
    if not file.is_relative_to(root):
        return "leads out of the repository"
    pinned = load.arrival.replay.sha256 if load.arrival.replay else None
    try:
        digest, found = trace_digest(file), part(load, read_arrivals(file))
    except UsageError as error:
        return error.finding.replace(str(file), str(file.relative_to(root)))
    if pinned not in (None, digest):
        return f"is another file than sha256 says: it has {digest}"
    return _unfit(found, load)


def _unfit(found: Sequence[Arrived], load: Load) -> str:
    """Why what a window replays of a trace does not go with the load; empty where it does."""
    if load.requests is not None and load.requests > len(found):
        return f"has {plural(len(found), 'request')}, and a window of {load.requests} is asked for: leave requests out"
    if load.prefix is not None and load.input_tokens is None and any(entry.blocks for entry in found):
        return "says which prompts begin alike (hash_ids), so prefix would do nothing: remove it, or give input_tokens"
    lengths = load.input_tokens.quantiles if load.input_tokens else [entry.input_tokens for entry in found]
    return load.too_much(len(found), lengths or [0])
