"""What counting simulated runs says of a declared error rate."""

from __future__ import annotations

from typing import Protocol

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
