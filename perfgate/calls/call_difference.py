"""What two builds' hosts do differently in a step of some kind, function by function, with what it costs.

A count that repeats is compared exactly. One that does not differs only where the ranges of both sides are apart by
more than either is wide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perfgate.calls.host_calls import CALLS, LINES, MODULES, PS_PER_S, HostCalls, StepKind, Total
from perfgate.trace.difference import Change, apart, range_changes, told
from perfgate.units import format_mean, listed, plural, signed_us

IN_A_STEP: Final[dict[StepKind, str]] = {"decode": "a step", "prefill": "in a prefill step"}
MOST_LINES = 20
"""Functions that have a line of their own, the most expensive ones."""
MOST_COUNTS = 6
"""Counts that the line of a function names."""
DOUBT = 0.5
"""Where C functions take the place of others, the share of that work which must be more expensive before it is told:
their times differ by a quarter between engines of one build, and by more on a machine that others use."""
NAMED = 3
"""Functions that a headline names."""
CLOCKS = (*(f"time.{name}{ns}" for name in ("perf_counter", "monotonic", "time", "thread_time", "process_time",
                                            "clock_gettime") for ns in ("", "_ns")),
          "datetime.now", "datetime.utcnow", "posix.times", "resource.getrusage")  # fmt: skip
WAITS = 3
"""Readings of a clock a step, as many as which vary, that make a function one which waits for a time."""


@dataclass(frozen=True)
class CallChange:
    """A function that the two sides do not run alike.

    Args:
        counts: What changed, a step: positive for more on the head.
        cost_s: What that costs, a step, in seconds.
        was: The base's name of it, where it has another class or module there.
        waits: Whether the head reads a clock in it again and again, as often as time permits: until some time has come.
            Counting makes that seldom, so its counts do not say what it costs. Where such a function of the base is
            gone, it may be that one under another name.
    """

    function: str
    counts: dict[str, float]
    cost_s: float
    kind: StepKind = "decode"
    was: str = ""
    waits: bool = False

    @property
    def row(self) -> Change:
        """As a row of a difference."""
        largest = sorted(self.counts.items(), key=lambda item: (item[0] not in (CALLS, LINES), -abs(item[1])))
        parts = [_in_words(what, count) for what, count in largest[:MOST_COUNTS]]
        if len(largest) > MOST_COUNTS:
            parts.append(f"{plural(len(largest) - MOST_COUNTS, 'C function')} more")
        return Change(
            named(self.function, self.was), (*self.counts.values(),), (f"{', '.join(parts)} {IN_A_STEP[self.kind]}",),
            self.cost_s, instead="it waits for a time" if self.waits else "",
        )  # fmt: skip


@dataclass(frozen=True)
class CallDifference:
    """What the head's host does otherwise than the base's in the steps of a kind.

    Args:
        changes: Those that wait for a time first, then the most expensive, whichever way.
        doubt_s: What of their sum the times of C functions are too uncertain for.
        saved_s: What of the work that the head does less is certain, a step, in seconds; 0 where it does more.
        at_times: Functions that the head sometimes runs more than the base ever does, the most expensive first, and
            what that costs a step where it is so half of the time, in seconds.
    """

    kind: StepKind
    changes: tuple[CallChange, ...]
    doubt_s: float = 0.0
    saved_s: float = 0.0
    at_times: tuple[tuple[str, float], ...] = ()

    @property
    def at_times_s(self) -> float:
        """What the head does more at times, a step, in seconds."""
        return sum(cost_s for _, cost_s in self.at_times)

    @property
    def cost_s(self) -> float:
        """What all of it costs at least, a step, in seconds; negative where the head does less."""
        return sum(change.cost_s for change in self.changes) - self.doubt_s

    @property
    def waiting(self) -> list[str]:
        """Functions of the head that wait for a time, and did not on the base."""
        return [change.function for change in self.changes if change.waits]

    @property
    def headline(self) -> str:
        """The whole in one line."""
        named = [change.function for change in self.changes[:NAMED]]
        more = len(self.changes) - len(named)
        others = f" and {plural(more, 'more function')}" if more > 0 else ""
        cost = f"{signed_us(self.cost_s)} {IN_A_STEP[self.kind]} by what its calls and lines cost at least"
        if self.waiting:
            wait = "wait" if len(self.waiting) > 1 else "waits"
            cost = f"{listed(self.waiting, NAMED)} {wait} for a time, which no count prices; apart from that {cost}"
        return f"{cost}: {', '.join(named)}{others}"

    @property
    def lines(self) -> list[str]:
        """The functions, as in a diff."""
        return told([change.row for change in self.changes], MOST_LINES, "more function")


def named(function: str, was: str) -> str:
    """A function, and its name on the base where it has another class or module there."""
    return f"{function} (was {was})" if was else function


def call_difference(base: HostCalls, head: HostCalls, kind: StepKind) -> CallDifference:
    """Hold the head's counts in the steps of a kind against the base's; both must be counted alike.

    Of a line, a call or a C function only what is more or less over all functions has a price, so that work which moves
    costs nothing: as the head's trials timed it where it is more, as the base's did where it is less.
    """
    old, new, steps = base.steps[kind], head.steps[kind], base.many(kind)
    moved = moved_functions(old.functions, new.functions)
    before = {(moved.get(function, function), what): total for (function, what), total in old.counts().items()}
    after, was, varying = new.counts(), {now: then for then, now in moved.items()}, new.varying()
    more = {key: _distance(before.get(key, (0, 0)), after.get(key, (0, 0))) / steps
            for key in sorted(before.keys() | after.keys())}  # fmt: skip
    more = {key: count for key, count in more.items() if count}
    price_ps = {
        (name, what): head.price_ps(kind, name, what) if count > 0 else base.price_ps(kind, was.get(name, name), what)
        for (name, what), count in more.items()
    }
    priced_ps = dict(_priced(more, price_ps))
    by_function: dict[str, dict[str, float]] = {}
    for (function, what), count in more.items():
        by_function.setdefault(function, {})[what] = count
    varied = old.varying()
    renamed = any(
        name not in new.functions and _waits(name, {what: -count for what, count in counts.items()}, varied)
        for name, counts in by_function.items()
    )
    changes = [
        CallChange(name, counts, sum(priced_ps[name, what] for what in counts) / PS_PER_S, kind,
                   was.get(name, ""), not renamed and _waits(name, counts, varying))
        for name, counts in by_function.items()
    ]  # fmt: skip
    in_c = [ps / PS_PER_S for (_, what), ps in priced_ps.items() if what not in (CALLS, LINES)]
    added_s, removed_s = sum(s for s in in_c if s > 0), -sum(s for s in in_c if s < 0)
    uncertain_s = DOUBT * min(added_s, removed_s)
    doubt_s = min(uncertain_s, max(added_s - removed_s, 0.0))
    saved_s = max(-sum(priced_ps.values()) / PS_PER_S - min(uncertain_s, max(removed_s - added_s, 0.0)), 0.0)
    ordered = sorted(changes, key=lambda change: (not change.waits, -abs(change.cost_s), change.function))
    at_times = {key: above / steps * head.price_ps(kind, *key) for key, above in _at_times(before, varying)}
    return CallDifference(kind, tuple(ordered), doubt_s, saved_s, tuple(_by_function(at_times)))


def figure_lines(base: HostCalls, head: HostCalls) -> list[str]:
    """What the processes have imported and what an iteration adds to their memory, as a diff.

    What is told costs nothing, so ranges need not be further apart than they are wide: a leak varies, too. A package
    without modules is not listed; another figure that one side lacks could not be read there.
    """
    names = {name for name in base.figures | head.figures
             if name.startswith(MODULES) or name in base.figures.keys() & head.figures.keys()}  # fmt: skip
    before, after = ({name: side.figures.get(name, (0, 0)) for name in names} for side in (base, head))
    return told(range_changes(before, after, lambda _, count: f"{count}"), MOST_LINES, "more figure")


_Key = tuple[str, str]
"""A function, and what is counted of it."""


def _priced(more: Mapping[_Key, float], price_ps: Mapping[_Key, int]) -> Iterator[tuple[_Key, float]]:
    """What each change costs, in picoseconds."""
    net = {what: [0.0, 0.0] for _, what in more}
    for (_, what), count in more.items():
        net[what][count > 0] += abs(count)
    for (function, what), count in more.items():
        gross, other = net[what][count > 0], net[what][count < 0]
        yield (function, what), count * price_ps[function, what] * max(gross - other, 0.0) / gross


def _at_times(before: Mapping[_Key, Total], varying: Mapping[_Key, Total]) -> Iterator[tuple[_Key, float]]:
    """Half of what the head's ranges reach above the base's and their width, beyond what differs in every iteration."""
    for key, total in varying.items():
        least, most = bounds = before.get(key, (0, 0))
        if (above := total[1] - most - (most - least) - max(_distance(bounds, total), 0)) > 0:
            yield key, above / 2


def _by_function(cost_ps: Mapping[_Key, float]) -> Iterator[tuple[str, float]]:
    """What functions cost in all, in seconds, the most expensive first."""
    sums: dict[str, float] = {}
    for (function, _), own_ps in cost_ps.items():
        sums[function] = sums.get(function, 0.0) + own_ps
    for function in sorted(sums, key=lambda name: (-sums[name], name)):
        yield function, sums[function] / PS_PER_S


def moved_functions(base: Collection[str], head: Collection[str]) -> dict[str, str]:
    """Functions that only the base has, each with the only one of its own name that only the head has."""
    gone = _by_own_name({*base} - {*head})
    new = _by_own_name({*head} - {*base})
    return {gone[name][0]: new[name][0] for name in gone if len(gone[name]) == len(new.get(name, ())) == 1}


def _by_own_name(functions: Iterable[str]) -> dict[str, list[str]]:
    """Functions by their names without module and class; those within functions by the whole of what they are in."""
    named: dict[str, list[str]] = {}
    for function in functions:
        outer, local, rest = function.partition(".<locals>")
        named.setdefault(f"{outer.rpartition('.')[2]}{local}{rest}", []).append(function)
    return named


def _waits(function: str, counts: Mapping[str, float], varying: Mapping[tuple[str, str], Total]) -> bool:
    return any(counts.get(clock, 0) >= WAITS and (function, clock) in varying for clock in CLOCKS)


def _distance(base: Total, head: Total) -> int:
    """By how much the head's range is above the base's, or below; 0 where that is at most as much as either is wide."""
    more = int(apart(base, head))
    return more if abs(more) > max(base[1] - base[0], head[1] - head[0]) else 0


def _in_words(what: str, count: float) -> str:
    nouns = {CALLS: "call", LINES: "line"}
    amount = format_mean(abs(count))
    if what in nouns:
        return f"{amount} {nouns[what]}{'' if abs(count) == 1 else 's'}"
    return f"{amount} {what}"
