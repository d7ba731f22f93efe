"""How fast perfgate's client can send: rates against a server that generates nothing, until it is late.

``python benchmarks/client_rate.py [--rates 25 50 100 200] [--seconds 10] [--client-core 0] [--server-core 1]``

Requests of 512 + 128 tokens arrive as a Poisson process. The server of ``tests/null_server.py`` gives each answer in
progress a token every 10 ms, all of them together, as an engine does. Prints a Markdown table; ends with 1 where the
client was late at the lowest rate.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfgate.load.arrivals import window
from perfgate.load.client import Client
from perfgate.load.exchange import Answers, Target, nearest_rank
from perfgate.load.shape import Load

ROOT = Path(__file__).parents[1]
STEP_MS = 10


@contextlib.contextmanager
def null_server(core: int | None, step_ms: float = STEP_MS) -> Iterator[str]:
    """The server in a process of its own; gives its URL."""
    words = [sys.executable, str(ROOT / "tests" / "null_server.py"), "--step-ms", f"{step_ms:g}"]
    words += ["--core", str(core)] if core is not None else []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 (it was asked for)
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def row(rate: float, found: Answers) -> str:
    """A line of the table."""
    late = [answer.sent_ns - answer.scheduled_ns for answer in found.answers if answer.sent_ns is not None]
    seconds = (found.end_ns - found.begin_ns) / 1e9
    tokens = sum(answer.tokens for answer in found.answers)
    errors = sum(bool(answer.error) for answer in found.answers)
    cells = [
        f"{rate:g}", f"{tokens / seconds:,.0f}", *(f"{nearest_rank(late, q) / 1e6:.3f} ms" for q in (0.5, 0.99, 1)),
        f"{100 * found.cpu_ns / 1e9 / seconds:.0f} %", f"{found.cpu_ns / 1e3 / max(1, tokens):.1f} us", str(errors),
        f"{found.reading_ns / 1e6:.3f} ms", "yes" if found.void is None else "no",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=float, nargs="+", default=[25, 50, 100, 150, 200])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=1)
    words = parser.parse_args()
    print(
        "| requests/s | tokens/s | late p50 | late p99 | latest | client's core | a token | errors | "
        "read p95 | in time |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    held = []
    with (
        tempfile.TemporaryDirectory() as folder,
        null_server(words.server_core) as url,
        Client(Path(folder), "client_rate", [words.client_core]) as client,
    ):
        for number, rate in enumerate(words.rates):
            load = Load.model_validate({
                "arrival": {"poisson": rate}, "requests": round(rate * words.seconds), "input_tokens": 512,
                "output_tokens": 128,
            })  # fmt: skip
            found = client.drive(window(load, number, 32_000), Target(url=url, model="null", timeout_s=120))
            print(row(rate, found), flush=True)
            held.append(found.void is None)
    return 0 if held[0] else 1


if __name__ == "__main__":
    sys.exit(main())
