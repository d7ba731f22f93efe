"""The processes of a Chrome trace, and which of them launched what ran on a device.

A trace of one process says so. In one that was merged from several ranks, correlation ids repeat: SGLang's merger
writes the rank beside each process and device, and elsewhere a device belongs to the only process whose calls launched
all that it ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfgate.errors import RecordError
from perfgate.trace.chrome_events import Event, Owner

NAMED = 8
"""Processes that an error names."""


class Processes:
    """The processes that launched something, numbered.

    Args:
        launching: Calls of the host, or on the CPU its operators.
        work: What ran on devices.
        where: The file, for errors.

    Raises:
        RecordError: Several processes launched, and it cannot be told which of them a device belongs to.
    """

    def __init__(self, launching: Sequence[Event], work: Sequence[Event], where: str) -> None:
        owners = sorted({event.owner for event in launching if event.pid is not None}, key=_in_order)
        self.pids: tuple[int, ...] = tuple(pid or 0 for _, pid in owners) or (0,)
        self.number = {owner: number for number, owner in enumerate(owners)}
        self._others: dict[Owner, int] = {}
        self._devices: dict[tuple[Owner, int | None], int] = {}
        if len(owners) > 1 and work:
            self._devices = self._of_devices(launching, work, where)

    def of_host(self, event: Event) -> int:
        """The number of the process of something on the host; the first one's where it is none of those."""
        return self.number.get(event.owner, 0)

    def of_range(self, event: Event) -> int:
        """The number of a range's process; processes that launched nothing come after the others."""
        if event.owner in self.number or event.pid is None:
            return self.of_host(event)
        return self._others.setdefault(event.owner, len(self.pids) + len(self._others))

    def of_work(self, event: Event) -> int:
        """The number of the process that launched what ran on a device."""
        return self._devices.get((event.owner, event.whole("device")), 0)

    def _of_devices(
        self, launching: Sequence[Event], work: Iterable[Event], where: str
    ) -> dict[tuple[Owner, int | None], int]:
        """The process of each device."""
        called: dict[Owner, dict[int | None, int]] = {owner: {} for owner in self.number}
        for event in launching:
            if event.owner in called:
                called[event.owner][event.whole("correlation")] = event.start_ns
        ran: dict[tuple[Owner, int | None], list[Event]] = {}
        for event in work:
            ran.setdefault((event.owner, event.whole("device")), []).append(event)
        found = {}
        for (owner, device), events in ran.items():
            same_rank = [other for other in self.number if other[0] == owner[0]]
            fitting = [other for other in same_rank if _launched_all(called[other], events)] or same_rank
            if len(fitting) != 1:
                text = f"holds several processes, and not which of them device {device} belongs to: {self._shown()}"
                raise RecordError(text, where=where, remedy="Give one trace a rank.")
            found[owner, device] = self.number[fitting[0]]
        return found

    def _shown(self) -> str:
        return ", ".join(map(str, self.pids[:NAMED])) + (", ..." if len(self.pids) > NAMED else "")


def _launched_all(called: dict[int | None, int], events: Sequence[Event]) -> bool:
    """Whether calls of a process came before all that ran under their numbers."""
    return all(called.get(event.whole("correlation"), event.start_ns + 1) <= event.start_ns for event in events)


def _in_order(owner: Owner) -> tuple[str, int]:
    return owner[0], owner[1] or 0
