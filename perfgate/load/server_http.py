"""What a server is asked beside its load, over HTTP: whether it is ready, its model and figures; none is trusted."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, InvalidTrialError
from perfgate.machine.json_text import MANIFEST, parse_json
from perfgate.metrics.trial import Probes

ASK_S: Final = 5.0
"""How long one answer may take beside the requests of the load."""
MOST_BYTES: Final = 8 * 1024**2
READY: Final = ("/health", "/v1/models")
"""Where a server says that it is ready: at the first of these that it has."""


def is_ready(url: str) -> bool:
    """Whether a server says that it is ready, at the first of :data:`READY` that it has."""
    for path in READY:
        status, _ = fetch(url, path)
        if status != http.client.NOT_FOUND:
            return status == http.client.OK
    return False


def fetch(url: str, path: str, asked: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """What a server answers: the status, 0 where there is no answer, and the body as far as it is bounded.

    It has :data:`ASK_S` for all of it: one that says a byte now and then would never be late for the next.

    Args:
        url: Of the server.
        path: What is asked for.
        asked: A JSON object to POST; ``None`` to GET.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=ASK_S)
    try:
        connection.connect()
        with _cut_after(ASK_S, connection.sock) as cut:
            if asked is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(asked), {"content-type": "application/json"})
            answer = connection.getresponse()
            body = answer.read(MOST_BYTES)
            return (0, b"") if cut.is_set() else (answer.status, body)
    except (OSError, http.client.HTTPException, ValueError):
        return 0, b""
    finally:
        connection.close()


@contextlib.contextmanager
def _cut_after(seconds: float, connection: socket.socket) -> Iterator[threading.Event]:
    """A block after which at the latest a connection has ended; the event says whether it was cut."""
    cut = threading.Event()

    def end() -> None:
        cut.set()
        with contextlib.suppress(OSError):  # it has ended by itself
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield cut
    finally:
        timer.cancel()
        timer.join()


def fetch_json(url: str, path: str) -> dict[str, Any]:
    """A JSON object that a server answers; empty where it does not."""
    status, body = fetch(url, path)
    try:
        content = parse_json(body, MANIFEST) if status == http.client.OK else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def served_name(url: str) -> str:
    """The name under which a server has its model.

    Raises:
        InvalidTrialError: It does not tell.
    """
    match fetch_json(url, "/v1/models").get("data"):
        case [{"id": str(name)}, *_] if 0 < len(name) <= 1000 and name.isprintable():  # noqa: PLR2004 (a path at most)
            return name
    raise InvalidTrialError("engine-failed", "the server names no model at /v1/models")


MOST_TEXT: Final = 4 * 1024**2
"""Of the text. vLLM 0.32 with one engine answers 50 kB."""
MOST_LINE: Final = 16 * 1024
"""Of one sample with its labels: the parser's time grows with their square."""
COUNTERS: Final[Mapping[str, tuple[str, float]]] = {
    "queue_ns": ("vllm:request_queue_time_seconds_sum", 1e9),
    "queued": ("vllm:request_queue_time_seconds_count", 1),
    "preemptions": ("vllm:num_preemptions_total", 1),
    "prefix_hits": ("vllm:prefix_cache_hits_total", 1),
    "prefix_queries": ("vllm:prefix_cache_queries_total", 1),
    "drafts_accepted": ("vllm:spec_decode_num_accepted_tokens_total", 1),
    "drafts": ("vllm:spec_decode_num_draft_tokens_total", 1),
}
"""By the name of a trial's figure: the sample, summed over its labels, and a factor to whole numbers. They are read
before and after a window, never within one: to answer takes the server milliseconds."""
KV_USE: Final = "vllm:kv_cache_usage_perc"
"""A share, in spite of its name."""
CACHE: Final = "vllm:cache_config_info"
"""Its labels tell the size of the KV cache."""

_READ: Final = tuple(name.encode() for name in (*(name for name, _ in COUNTERS.values()), KV_USE, CACHE))

Scrape = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""By name of a sample: labels and value of each."""


def read_metrics(text: bytes) -> Scrape:
    """The samples of a text that are read here; none where it is too large, or one of them not of this format."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    lines = [line for line in text.splitlines() if line.startswith(_READ)]
    if len(text) > MOST_TEXT or any(len(line) > MOST_LINE for line in lines):
        return {}
    try:
        for family in text_string_to_metric_families(b"\n".join(lines).decode("utf-8", "replace")):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):  # what it raises for other text
        return {}
    return samples


def total(scrape: Scrape, name: str) -> float | None:
    """A sample summed over its labels; ``None`` where there is none, or it is not a number."""
    values = [value for _, value in scrape.get(name, ())]
    added = sum(values)
    return added if values and math.isfinite(added) else None


def growth(before: Scrape, after: Scrape) -> dict[str, int]:
    """By how much each of :data:`COUNTERS` grew; without those that are missing or ran backwards."""
    grown: dict[str, int] = {}
    for figure, (name, factor) in COUNTERS.items():
        first, last = total(before, name), total(after, name)
        if first is not None and last is not None and 0 <= (more := (last - first) * factor) < LARGEST:
            grown[figure] = round(more)
    return grown


def kv_use_ppm(scrape: Scrape) -> int | None:
    """The share of the KV cache that is in use, in millionths, of the engine that uses most."""
    shares = [value for _, value in scrape.get(KV_USE, ()) if 0 <= value <= 1]
    return round(max(shares) * 1e6) if shares else None


def kv_token_capacity(scrape: Scrape) -> int | None:
    """Tokens that the KV caches of all engines hold; ``None`` where the server does not tell."""
    sizes = []
    for labels, _ in scrape.get(CACHE, ()):
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if not (blocks.isdecimal() and size.isdecimal() and len(blocks + size) < 18):  # noqa: PLR2004 (below LARGEST)
            return None
        sizes.append(int(blocks) * int(size))
    return sum(sizes) or None


EXTENSION: Final = "perfgate_probe.Ranks"
METHOD: Final = "perfgate_read_probe"
"""Both as :mod:`perfgate.load.vllm_server` offers them, which imports nothing from here. vLLM lets a class add methods
to its workers, and in its development mode calls them over HTTP. Both are asked of each server of vLLM that is started
here, on either side alike: the mode adds routes, and leaves the rest."""
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
    env, arguments = {**job.cell.engine.env, **job.subject.env}, job.engine_args
    if job.cell.engine.command or job.subject.url or env.get(SWITCH) == "0" or arguments.get("worker_extension_cls"):
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
            case {"results": [*readings]} if len(readings) == ranks and all(map(_is_reading, readings)):
                return tuple(map(int, readings))
    return ()


def probes(readings: Sequence[tuple[int, ...]]) -> Probes | None:
    """What was read before and after a window; ``None`` where either is lacking, or is of other ranks."""
    match readings:
        case [before, after] if 0 < len(before) == len(after):
            return Probes(before, after)
    return None


def _is_reading(text: object) -> bool:
    """A number comes as text; of a rank in which the probe failed it is the error."""
    return isinstance(text, str) and text.isdecimal() and len(text) <= MOST_DIGITS and 0 < int(text) < LARGEST
