"""What a user of a server expects of each request."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from perfgate.models import Duration, Strict

TIMES: Final = ("ttft", "tpot", "e2e")
"""What an objective can bound, for each request."""


class Slo(Strict):
    """What a request must meet: every bound that is named.

    Args:
        ttft: The longest time to first token, from schedule.
        tpot: The longest time per output token after the first.
        e2e: The longest time from schedule to the last token.
    """

    ttft: Annotated[Duration | None, Field(examples=["200ms"])] = None
    tpot: Annotated[Duration | None, Field(examples=["20ms"])] = None
    e2e: Annotated[Duration | None, Field(examples=["2s"])] = None

    @model_validator(mode="after")
    def _a_bound(self) -> Slo:
        if not self.bounds:
            raise ValueError(f"expected at least one of {', '.join(TIMES)}")
        return self

    @property
    def bounds(self) -> dict[str, float]:
        """Those that are named, in seconds."""
        return {name: bound for name in TIMES if (bound := getattr(self, name)) is not None}
