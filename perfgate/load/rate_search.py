"""Bisection for the highest rate at which a server still does what is expected of it.

Between two rates of which it met the objective at the lower and not at the upper, the next is their geometric mean: the
bracket halves as a ratio. The rate found is the geometric mean of the last bracket, which is all that is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class RateSearch:
    """A search, window by window.

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
