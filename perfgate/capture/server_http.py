"""What a server is asked beside its load, over HTTP: whether it is ready, its model and figures; none is trusted."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perfgate.capture.timeline import InvalidTrialError
from perfgate.machine.json_text import MANIFEST, parse_json

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
        found = parse_json(body, MANIFEST) if status == http.client.OK else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def served_name(url: str) -> str:
    """The name under which a server has its model.

    Raises:
        InvalidTrialError: It does not tell.
    """
    match fetch_json(url, "/v1/models").get("data"):
        case [{"id": str(name)}, *_] if 0 < len(name) <= 1000 and name.isprintable():  # noqa: PLR2004 (a path at most)
            return name
    raise InvalidTrialError("engine-failed", "the server names no model at /v1/models")
