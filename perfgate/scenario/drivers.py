"""Drivers: entries ``drivers`` of the tables of rooms, which a scenario's ``engine.driver`` names.

A driver starts engines and gives them their work. The core asks the entry, and the driver's :class:`Work`, and names
none but its own. Where a room was removed its drivers are unknown, and a scenario or record of one is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic_core import PydanticKnownError

from perfgate import rooms


@dataclass(frozen=True, kw_only=True)
class EngineDriver:
    """One driver; what names code is ``module:name``, imported when it is used.

    Args:
        name: As a scenario says it.
        place: Its place among the drivers, as they are listed.
        starts: Starts engines (:class:`perfgate.capture.driver_protocol.Driver`); called once for each station.
        work: What its engines are given (:class:`perfgate.scenario.work.Work`).
        timed: A job to what watches a timed trial (:class:`perfgate.capture.instruments.Instrument`).
        read: What an engine answered, as a timeline keeps it, the workload, and when it was asked
            (:class:`perfgate.capture.timeline.Span`, any time where that is not given) to an iteration.
        vllm: Whether its engine arguments are vLLM's, so that a build can be asked which it takes.
        command: Whether ``engine.command`` can start its engine.
    """

    name: str
    place: int
    starts: str
    work: str = "perfgate.scenario.work:Work"
    timed: str = "perfgate.capture.timing:Timed"
    read: str = "perfgate.capture.timeline:read_iteration"
    vllm: bool = False
    command: bool = False


DRIVERS: Final = rooms.declared("drivers", EngineDriver)
"""By name, in their order."""


def known_driver(name: str) -> str:
    """A name that is that of a driver.

    Raises:
        UsageError: Its room was removed.
        ValueError: It is none.
    """
    if name not in DRIVERS:
        rooms.refuse_removed("drivers", name, f"driver: {name}")
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, DRIVERS))})
    return name


def declared_driver(content: Mapping[str, object]) -> str:
    """The driver of a scenario, as its file has it; the first one where it names none that is known."""
    engine = content.get("engine")
    named = engine.get("driver") if isinstance(engine, Mapping) else None
    return named if isinstance(named, str) and named in DRIVERS else next(iter(DRIVERS))
