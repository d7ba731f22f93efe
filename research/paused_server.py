"""Coordinated omission: what is reported of a server that pauses, against the arithmetic from schedule.

``python research/paused_server.py [--pause 2] [--rate 50] [--seconds 6]``

A server answers at once, but for a pause in the middle. A request that is due in the pause waits for its end: that is
arithmetic. Answering all that waited takes the server a while, so it notes when it wrote each answer, and perfgate's
open loop is held against that, from schedule. A closed loop of four users that counts from sending, as many load
drivers do, shows what is lost. Ends with 1 where perfgate is more than 1 % off.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from null_server import NullServer, at_once, serving

from perfgate.load.arrivals import window
from perfgate.load.client import Client
from perfgate.load.exchange import Answers, Target, Window
from perfgate.load.shape import Load


class Pausing:
    """Answers at once, but for a pause.

    Args:
        after_ns: From the first request to the pause.
        pause_ns: How long it is.
    """

    def __init__(self, after_ns: int, pause_ns: int) -> None:
        self._after_ns, self._pause_ns = after_ns, pause_ns
        self.begin_ns = self.end_ns = 0
        self.wrote_ns: dict[tuple[int, ...], int] = {}  # by prompt

    def __call__(self, connection: NullServer, request: dict[str, Any]) -> None:
        """Answer, or hold the answer back."""
        now_ns = time.monotonic_ns()
        self.begin_ns = self.begin_ns or now_ns + self._after_ns
        self.end_ns = self.begin_ns + self._pause_ns
        if self.begin_ns <= now_ns < self.end_ns:
            asyncio.get_running_loop().call_later((self.end_ns - now_ns) / 1e9, self._write, connection, request)
        else:
            self._write(connection, request)

    def _write(self, connection: NullServer, request: dict[str, Any]) -> None:
        self.wrote_ns[tuple(request["prompt"])] = time.monotonic_ns()
        at_once(connection, request)

    def due_ns(self, scheduled_ns: int) -> int:
        """How long a request waits that is due at this time."""
        return max(0, self.end_ns - scheduled_ns) if scheduled_ns >= self.begin_ns else 0


def ask(arrival: dict[str, Any], words: argparse.Namespace) -> tuple[Pausing, Window, Answers]:
    """A window sent to such a server."""
    load = Load.model_validate({
        "arrival": arrival, "requests": round(words.rate * words.seconds), "input_tokens": 16,
        "output_tokens": {"uniform": [4, 12]},
    })  # fmt: skip
    asked = window(load, 0, 32_000)
    pausing = Pausing(round(words.seconds * 1e9 / 3), round(words.pause * 1e9))
    with tempfile.TemporaryDirectory() as folder, serving(pausing) as url, Client(Path(folder), "pause") as client:
        return pausing, asked, client.drive(asked, Target(url=url, model="null"))


def main() -> int:
    """Print both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=2)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=6)
    words = parser.parse_args()
    pausing, asked, found = ask({"poisson": words.rate}, words)
    held = [answer for answer in found.answers if pausing.due_ns(answer.scheduled_ns)]
    reported = mean(answer.ttft_ns or 0 for answer in held) / 1e6
    arithmetic = mean(pausing.due_ns(answer.scheduled_ns) for answer in held) / 1e6
    prompts = {request.number: request.prompt for request in asked.requests}
    wrote = mean(pausing.wrote_ns[prompts[answer.number]] - answer.scheduled_ns for answer in held) / 1e6
    off = reported / wrote - 1
    print("| mean TTFT | requests | ms |\n|---|---|---|")
    print(f"| due in the pause, arithmetic from schedule | {len(held)} | {arithmetic:.2f} |")
    print(f"| due in the pause, from schedule until the server wrote | {len(held)} | {wrote:.2f} |")
    print(f"| due in the pause, open loop | {len(held)} | {reported:.2f} ({off:+.2%}) |")
    print(
        f"| all, open loop | {len(found.answers)} | {mean(answer.ttft_ns or 0 for answer in found.answers) / 1e6:.2f} |"
    )
    # As many requests in as much time, by users who wait for their answers.
    think = f"{4 / words.rate * 1e3:g}ms"
    *_, found = ask({"closed": {"concurrency": 4, "think": think}}, words)
    sent = [(answer.token_ns[0] - answer.sent_ns) / 1e6 for answer in found.answers if answer.sent_ns is not None]
    print(f"| all, closed loop of 4 users, from sending | {len(sent)} | {mean(sent):.2f} |")
    return int(abs(off) > 0.01)  # noqa: PLR2004 (1 %)


if __name__ == "__main__":
    sys.exit(main())
