"""How late the client reads: the proof that its stamps are those of the server.

How late requests are sent does not show it. One that is due is sent between two reads, so it overtakes what waits to be
read; and in a closed loop an answer that is read late makes the next request due late.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from perfgate.load.alarm import Alarm
from perfgate.load.exchange import nearest_rank

EVERY_NS: Final = 2_000_000
"""The mean time between two looks: 500 in a window of a second, at 0.3 % of a core."""
SHARE: Final = 0.95
"""So many looks were on time, or no later than what is told. A client with a backlog is late at each step; one that its
machine held up once, for a hundredth of a short window, is late then alone."""


class Backlog:
    """A timer that rings at random times and waits for its turn in the event loop, as what a server sends does.

    Times of a Poisson process see the client as it is on average. Those that pass while it is busy count too, each by
    how late its turn comes, so a long backlog weighs as long as it lasts.

    Args:
        begin_ns: Looks are after this.
    """

    def __init__(self, begin_ns: int) -> None:
        self._gaps = random.Random(0)  # noqa: S311 (no secret)
        self._late_ns: list[int] = []
        self._due_ns = begin_ns
        self._alarm = Alarm(asyncio.get_running_loop(), self._look)
        self._alarm.set(begin_ns)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        while self._due_ns <= now_ns:
            self._late_ns.append(now_ns - self._due_ns)
            self._due_ns += round(self._gaps.expovariate(1) * EVERY_NS)
        self._alarm.set(self._due_ns)

    def close(self) -> int:
        """Look a last time.

        Returns:
            The p95 of how late turns came, nanoseconds by nearest rank; 0 where the window ended before it began.
        """
        self._look()
        self._alarm.close()
        return nearest_rank(self._late_ns, SHARE) if self._late_ns else 0
