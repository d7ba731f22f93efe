"""In which state the GPUs of a server are: its ranks time the probe between windows (docs/states.md).

vLLM lets a class of one's own add methods to its workers, and in its development mode calls them over HTTP. Both are
asked of each server of vLLM that is started here, on either side alike: the mode adds routes, and leaves the rest.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Sequence
from typing import Final

from perfgate.capture.job import Job
from perfgate.capture.server_http import fetch
from perfgate.capture.timeline import LARGEST
from perfgate.machine.json_text import MANIFEST, parse_json
from perfgate.metrics.trial import Probes

EXTENSION: Final = "perfgate_probe.Ranks"
METHOD: Final = "perfgate_read_probe"
"""Both as :mod:`perfgate.capture.vllm_server` offers them, which imports nothing from here."""
DEVELOPMENT: Final = "VLLM_SERVER_DEV_MODE"
SWITCH: Final = "PERFGATE_PROBE"
ROUTE: Final = "/collective_rpc"
MOST_DIGITS: Final = 19
CHILDREN: Final = ("mp", "uni")
"""How vLLM starts ranks below the process that serves: the others of its executors are elsewhere."""


def is_probed(job: Job) -> bool:
    """Whether the ranks of a server are asked: of vLLM's own, unless that is switched off or something extends them.

    Nor ranks that vLLM does not start as children of its own, which could not find the class, and not those of several
    engines, of which the first alone would answer.
    """
    own, arguments = {**job.cell.engine.env, **job.subject.env}, job.engine_args
    if job.cell.engine.command or job.subject.url or own.get(SWITCH) == "0" or arguments.get("worker_extension_cls"):
        return False
    executor = arguments.get("distributed_executor_backend") or "mp"
    return executor in CHILDREN and (arguments.get("data_parallel_size") or 1) == 1


def read_ranks(url: str, ranks: int) -> tuple[int, ...]:
    """One reading a rank, nanoseconds; empty where some rank has none, or the server does not know of them.

    Args:
        url: Of the server.
        ranks: How many there are.
    """
    status, body = fetch(url, ROUTE, {"method": METHOD})
    if status != http.client.OK:
        return ()
    with contextlib.suppress(ValueError):
        match parse_json(body, MANIFEST):
            case {"results": [*told]} if len(told) == ranks and all(map(_is_reading, told)):
                return tuple(map(int, told))
    return ()


def probes(readings: Sequence[tuple[int, ...]]) -> Probes | None:
    """What was read before and after a window; ``None`` where either is lacking, or is of other ranks."""
    match readings:
        case [before, after] if 0 < len(before) == len(after):
            return Probes(before, after)
    return None


def _is_reading(told: object) -> bool:
    """A number comes as text; of a rank in which the probe failed it is the error."""
    return isinstance(told, str) and told.isdecimal() and len(told) <= MOST_DIGITS and 0 < int(told) < LARGEST
