"""What counting simulated runs says of a declared error rate, and the page of tables that several scripts write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds

SHOWN, REFUTED = "shown", "**refuted**"


class Counted(Protocol):
    """A row of a table of rates.

    Args:
        wrong: Runs with the error whose rate is declared.
        runs: Simulated runs.
        declared: The rate declared for it.
        confidence: Probability with which either bound holds.
    """

    @property
    def wrong(self) -> int: ...  # noqa: D102
    @property
    def runs(self) -> int: ...  # noqa: D102
    @property
    def declared(self) -> float: ...  # noqa: D102
    @property
    def confidence(self) -> float: ...  # noqa: D102


class ClaimedRate:
    """The bounds of a :class:`Counted` row, and what they say of its claim: a rate of at most the declared one."""

    @property
    def confidence(self) -> float:
        """Of each of its bounds."""
        return 0.99

    @property
    def least(self: Counted) -> float:
        """One-sided lower confidence bound of the true rate (Clopper and Pearson 1934)."""
        return rate_bounds(self.wrong, self.runs, self.confidence)[0]

    @property
    def most(self: Counted) -> float:
        """The upper one."""
        return rate_bounds(self.wrong, self.runs, self.confidence)[1]

    @property
    def standing(self: Counted) -> str:
        """Refuted by the lower bound, shown by the upper one, or neither."""
        least, most = rate_bounds(self.wrong, self.runs, self.confidence)
        return SHOWN if most <= self.declared else "not refuted" if least <= self.declared else REFUTED


class RateOfCase(ClaimedRate):
    """One whose case says which error it is: a pass at ``must_catch``, else a block."""

    case: Any

    @property
    def declared(self) -> float:
        """The rate declared for the error of the case."""
        return BETA if self.case.endswith("must_catch") else ALPHA


def percent(rate: float) -> str:
    """A rate with two decimals, as percent."""
    return f"{rate * 100:.2f} %"


def line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |\n"


def heading(columns: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"{line(columns)}|{'---|' * len(columns)}\n"


def merged(page: str, new: str) -> str:
    """A page with new sections in place of those of the same titles; one that it lacks goes behind the one before.

    Args:
        page: Markdown whose sections begin with two number signs; what is before the first is a section as well.
        new: Sections of such a page.
    """
    kept = {part.partition("\n")[0]: part for part in _parts(page)}
    order, place = list(kept), len(kept) - 1
    for part in _parts(new):
        title = part.partition("\n")[0]
        if title not in kept:
            order.insert(place + 1, title)
        kept[title] = part
        place = order.index(title)
    return "\n\n".join(kept[title] for title in order) + "\n"


def _parts(text: str) -> list[str]:
    return [part.strip("\n") for part in re.split(r"(?m)^(?=## )", text) if part.strip()]
