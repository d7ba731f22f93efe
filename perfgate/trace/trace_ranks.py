"""The processes of a Chrome trace, and which of them launched what ran on a device.

A trace of one process says so. In one that was merged from several ranks, correlation ids repeat: SGLang's merger
writes the rank beside each process and device, and elsewhere a device belongs to the only process whose calls launched
all that it ran. Ranks that each number their device 0 share that in a merged trace: calls of two may have launched it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perfgate.errors import RecordError
from perfgate.trace.chrome_events import Event, Owner
from perfgate.trace.kernel_table import LAUNCHES, call_kind
from perfgate.units import plural

NAMED = 8
"""Processes that an error names."""
TELLING = 4
"""Calls of a process that have to agree: one number of two kernels may be a damaged one."""


class Processes:
    """The processes that launched something, numbered.

    Args:
        launching: Calls of the host, or on the CPU its operators.
        work: What ran on devices.
        where: The file, for errors.

    Raises:
        RecordError: Several processes launched, and it cannot be told which of them a device belongs to, or what is of
            one process by its number is of several.
    """

    def __init__(self, launching: Sequence[Event], work: Sequence[Event], where: str) -> None:
        owners = sorted({event.owner for event in launching if event.pid is not None}, key=_in_order)
        self.pids: tuple[int, ...] = tuple(pid or 0 for _, pid in owners) or (0,)
        self.number = {owner: number for number, owner in enumerate(owners)}
        self._others: dict[Owner, int] = {}
        self._devices: dict[tuple[Owner, int | None], int] = {}
        if len(owners) > 1 and work:
            self._devices = self._of_devices(launching, work, where)
        elif work:
            _check_numbers(launching, work, where)

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
        numbers = {}
        for (owner, device), events in ran.items():
            same_rank = [other for other in self.number if other[0] == owner[0]]
            fitting = [other for other in same_rank if _launched_all(called[other], events)] or same_rank
            if len(fitting) != 1:
                text = f"holds several processes, and not which of them device {device} belongs to: {self._shown()}"
                raise RecordError(text, where=where, remedy="Give one trace a rank.")
            numbers[owner, device] = self.number[fitting[0]]
        self._check_idle(launching, set(numbers.values()), ran, where)
        return numbers

    def _check_idle(self, launching: Iterable[Event], working: set[int], ran: Ran, where: str) -> None:
        """Refuse a process without a device, one of whose launches may have launched what another one's device ran."""
        latest: dict[tuple[str, int | None], int] = {}
        for event in (event for events in ran.values() for event in events):
            key = event.owner[0], event.whole("correlation")
            latest[key] = max(event.start_ns, latest.get(key, event.start_ns))
        for event in launching:
            number, key = self.number.get(event.owner), (event.owner[0], event.whole("correlation"))
            launches = number is not None and number not in working and call_kind(event.name) in LAUNCHES
            if launches and key in latest and event.start_ns <= latest[key]:
                devices = ", ".join(sorted({str(device) for _, device in ran}))
                text = f"holds several processes, and not which of them device {devices} belongs to: {self._shown()}"
                raise RecordError(text, where=where, remedy="Give one trace a rank.")

    def _shown(self) -> str:
        return ", ".join(map(str, self.pids[:NAMED])) + (", ..." if len(self.pids) > NAMED else "")


Ran = dict[tuple[Owner, int | None], list[Event]]
"""What ran, by its device."""


def _numbers(calls: Iterable[Event]) -> set[int | None]:
    """The numbers of calls that launch one kernel each."""
    return {e.whole("correlation") for e in calls if e.name.startswith(("cu", "hip")) and call_kind(e.name) == "launch"}


def _kernels(work: Iterable[Event]) -> Counter[int | None]:
    """How many kernels have each number."""
    return Counter(e.whole("correlation") for e in work if e.category == "kernel")


def _check_numbers(calls: Iterable[Event], work: Iterable[Event], where: str) -> None:
    """Refuse the ranks of several containers, whose processes have one number.

    Raises:
        RecordError: Most calls of one process that launch a kernel have several, of at least :data:`TELLING`.
    """
    one_each, kernels = _numbers(calls), _kernels(work)
    counts = [kernels[number] for number in one_each if number in kernels]
    several = sum(count > 1 for count in counts)
    if 2 * several > len(counts) >= TELLING:
        text = (
            f"{several} of {plural(len(counts), 'call')} that launch a kernel have several: ranks of one process number"
        )
        raise RecordError(text, where=where, remedy="Give one trace a rank.")


def _launched_all(called: dict[int | None, int], events: Sequence[Event]) -> bool:
    """Whether calls of a process came before all that ran under their numbers."""
    return all(called.get(event.whole("correlation"), event.start_ns + 1) <= event.start_ns for event in events)


def _in_order(owner: Owner) -> tuple[str, int]:
    return owner[0], owner[1] or 0
