"""Timed trials of a server: windows of load, measured once the server has settled.

Warm-up is the windows that the scenario declares, and more while the time per token of their requests still changes
(:func:`is_steady`), up to :data:`MOST_MORE`. Whether to go on rests on warm-up alone, never on what is
measured. Where a load has the highest rate to be found, the windows of that search come next; what is measured is then
at the highest rate that met the objective, and lower where the server refuses requests at it after all: the rate that
was found is the trial's result, and these windows are there to be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perfgate.capture.driver_protocol import Engine
from perfgate.capture.instruments import Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError, Span
from perfgate.capture.timing import Timed
from perfgate.errors import NotMeasuredError
from perfgate.load.arrival_kinds import LEAST_RATE, Find
from perfgate.load.server_http import is_probed
from perfgate.load.shape import Load
from perfgate.load.under_load import COUNTED_BY, COUNTS, MAX_RATE, MAX_RATE_STEP, MORE_WARMUP, met_share
from perfgate.load.window_reading import OverloadedError, RefusedError, read_window
from perfgate.metrics.trial import Iteration

BATCH: Final = 5
LEAST_BATCHES: Final = 4
"""Of a stretch; with fewer nothing can be told."""
STANDARD_ERRORS: Final = 3.0


def agree(before: Sequence[float], after: Sequence[float]) -> bool | None:
    """Whether two stretches of requests took as long; ``None`` where they are too short to tell.

    Means of consecutive batches of five are compared and not single requests, which are correlated: they queue behind
    each other (batch means, Law, Simulation Modeling and Analysis, chapter 9). Two stretches agree where their means
    differ by at most three standard errors (Welch). Of series of independent log-normal times that do not change, 1 to
    2 % are called changing from 40 requests a pair of stretches on.

    Args:
        before: A time of each request, in the order in which they were due; what does not fill a batch is left out.
        after: The same of the requests that came next.
    """
    means = [np.array(stretch[: len(stretch) // BATCH * BATCH], dtype=float).reshape(-1, BATCH).mean(axis=1)
             for stretch in (before, after)]  # fmt: skip
    if min(map(len, means)) < LEAST_BATCHES:
        return None
    error = math.sqrt(sum(float(stretch.var(ddof=1)) / len(stretch) for stretch in means))
    return abs(float(means[0].mean() - means[1].mean())) <= STANDARD_ERRORS * error


def is_steady(windows: Sequence[Sequence[float]]) -> bool | None:
    """Whether warm-up has come to rest: the last two windows agree, or the halves of the only one.

    Args:
        windows: A time of each request, window by window; ``None`` is returned where they are too short to tell.
    """
    if not windows:
        return None
    if len(windows) == 1:
        half = len(windows[0]) // 2
        return agree(windows[0][:half], windows[0][half:])
    return agree(windows[-2], windows[-1])


@dataclass
class RateSearch:
    """Bisection for the highest rate at which a server still does what is expected of it, window by window.

    Between two rates of which it met the objective at the lower and not at the upper, the next is their geometric mean:
    the bracket halves as a ratio. The geometric mean of the last bracket is all that is known.

    Args:
        low: The highest rate that held so far, or the lowest there is; requests a second.
        high: The lowest rate that did not hold, or the highest there is.
    """

    low: float
    high: float
    held: bool = False
    """Whether any rate held."""
    broke: bool = False
    """Whether any rate did not."""

    @property
    def rate(self) -> float:
        """The rate to try next, and at the end the rate that was found."""
        return math.sqrt(self.low * self.high)

    def note(self, *, held: bool) -> None:
        """What came of :attr:`rate`."""
        if held:
            self.low, self.held = self.rate, True
        else:
            self.high, self.broke = self.rate, True


MOST_MORE: Final = 4
"""Windows of warm-up beyond the declared ones."""
LOWER: Final = 0.9
"""By so much the rate is lowered where a server refuses requests at the one that was found."""
MOST_LOWER: Final = 5
"""Times, in a trial."""


class Windows(Timed):
    """Watches a trial of a server; it writes the trial's timeline, a line a window."""

    warms_up_beside = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._times: list[list[float]] = []
        self._more = 0
        self._counted: list[Mapping[str, int]] = []
        self._kv_use_ppm: int | None = None
        self._shares_cores = False
        self._counts = COUNTS[0]
        self._sent_twice = False
        self._found: dict[str, int] = {}
        self._seeks = False
        self._unused = 0
        self._lowered = 0
        self._steady: bool | None = None

    def run(self, engine: Engine, number: int, *, warmup: bool) -> Iteration:
        """One window; of warm-up the time per token of each request is kept."""
        try:
            iteration = super().run(engine, number, warmup=warmup)
        except RefusedError:
            if warmup or not self._lower():
                raise
            self._unused += 1  # prompts that this server has not had
            return self.run(engine, self._unused - 1, warmup=False)
        if warmup:
            self._times.append([e2e / n for e2e, n in zip(iteration.e2e_ns, iteration.tokens, strict=True)])
        return iteration

    def read(self, answer: Mapping[str, Any], asked: Span, *, warmup: bool) -> Iteration:
        """A window; in one that nothing rests on the client may be late."""
        del asked
        return read_window(answer, may_be_late=warmup and not self._seeks)

    def settle(self, engine: Engine, last: Iteration | None, say: Say) -> None:
        """Warm up until the server has settled, and its GPUs are fast."""
        first = sum(self.iterations)  # prompts that no measured window has: its prefixes must not be cached
        while last and is_steady(self._times) is False and self._more < MOST_MORE:
            say("warming up until the server has settled")
            last = self.run(engine, first + self._more, warmup=True)
            self._more += 1
        self._steady = is_steady(self._times)  # what comes next may be on either side of a jump
        find = self.workload.arrival.find if isinstance(self.workload, Load) else None
        self._unused = self.await_fast(engine, last, first + MOST_MORE + (find.steps if find else 0), say)
        if isinstance(self.workload, Load) and find is not None:
            self._find(engine, self.workload, find, say)

    def _find(self, engine: Engine, load: Load, find: Find, say: Say) -> None:
        """Seek the highest rate, and go on at the highest that held.

        Raises:
            InvalidTrialError: ``rate-out-of-range``.
        """
        self._seeks = True
        search = RateSearch(find.least, find.most)
        for number in range(find.steps):
            say(f"seeking the highest rate: {search.rate:.4g} requests/s")
            self.workload = load.at_rate(search.rate)
            try:
                window = super().run(engine, sum(self.iterations) + MOST_MORE + number, warmup=True)
            except OverloadedError:
                search.note(held=False)
            else:
                search.note(held=met_share(window, find.slo.bounds) >= find.share)
        if not (search.held and search.broke):
            never = "every" if search.held else "no"
            text = f"{never} rate from {find.least:g} to {find.most:g} requests/s met the objective"
            raise InvalidTrialError("rate-out-of-range", text)
        self.workload = load.at_rate(search.low)
        self._found = {MAX_RATE: round(search.rate * 1e6), MAX_RATE_STEP: round((search.high - search.low) * 1e6)}

    def _lower(self) -> bool:
        """Whether to go on at a lower rate, which is set: where one was sought, and not without end."""
        if not self._found or self._lowered == MOST_LOWER or not isinstance(self.workload, Load):
            return False
        self._lowered += 1
        self.workload = self.workload.at_rate(max(LEAST_RATE, LOWER * (self.workload.arrival.poisson or 0.0)))
        return True

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:
        """Write it down, and add up what the server counted in measured windows."""
        warmup = warmup or (bool(self._found) and _is_refused(answer))
        super().note(number, answer, warmup=warmup)
        self._shares_cores |= bool(answer.get("shares_cores"))
        self._counts = answer.get("counts", self._counts)
        if not warmup or self._seeks:
            self._sent_twice |= any(request["sent_twice"] for request in answer["answers"]["answers"])
        if warmup:
            reading = answer.get("kv_use_ppm")
            readings = (use_ppm for use_ppm in (reading, self._kv_use_ppm) if use_ppm is not None)
            self._kv_use_ppm = max(readings, default=None)
        else:
            self._counted.append(answer.get("counted", {}))

    def fields(self) -> dict[str, Any]:
        """Cautions, figures, and the timeline."""
        figures = _added(self._counted) | ({MORE_WARMUP: self._more} if self._more else {}) | self._found
        if self._kv_use_ppm is not None:
            figures["kv_use_ppm"] = self._kv_use_ppm
        if self._counts != COUNTS[0]:
            figures[COUNTED_BY] = COUNTS.index(self._counts)
        fields = super().fields()
        cautions = {
            "not-steady": self._steady is False,
            "client-shares-cores": self._shares_cores,
            "requests-sent-twice": self._sent_twice,
            "rate-lowered": self._lowered > 0,
            "no-probe": is_probed(self.job) and "no-probe" in fields["cautions"],
        }
        codes = tuple(code for code, holds in cautions.items() if holds)
        return fields | {"cautions": codes, "figures": fields.get("figures", {}) | figures}


def _is_refused(answer: Mapping[str, Any]) -> bool:
    """Whether a window does not count because the server was given more than it takes."""
    try:
        read_window(answer)
    except RefusedError:
        return True
    except NotMeasuredError:  # told when it is read
        return False
    return False


def _added(windows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Figures over all windows; one that a window lacks, because the server did not answer, is not known."""
    names = set.intersection(*map(set, windows)) if windows else set()
    return {name: sum(window[name] for window in windows) for name in sorted(names)}
