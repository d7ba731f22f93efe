"""Which launches of a decode step ncu replays: a window that holds one layer and all that is outside of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfgate.errors import NotMeasuredError
from perfgate.scenario.counter_trials import Launches
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern


@dataclass(frozen=True)
class LaunchWindow:
    """Launches of a decode step that follow one another, perhaps into the step after it.

    Args:
        begin: Position of the first in its step, from 0.
        count: How many there are.
        pattern: The step.
    """

    begin: int
    count: int
    pattern: Pattern

    @property
    def positions(self) -> tuple[int, ...]:
        """Of each launch in its step."""
        return tuple((self.begin + n) % len(self.pattern.kernels) for n in range(self.count))


def choose_window(steps: DecodeSteps, launches: Sequence[Launches]) -> LaunchWindow:
    """The shortest window of the most frequent step that holds every launch asked for; of several the first.

    Raises:
        NotMeasuredError: ``counters-no-launch``: the step has none of them, or fewer.
    """
    pattern = steps.patterns[0]
    keys = [steps.keys[kernel] for kernel in pattern.kernels]
    tests = [_Wanted.of(one, keys, pattern.layers()) for one in launches]
    size = len(keys)
    best: LaunchWindow | None = None
    for begin in range(size):
        longest = 2 * size if best is None else best.count - 1
        seen = [one.counting() for one in tests]
        for n in range(longest):
            done = [count((begin + n) % size) for count in seen]
            if all(done):
                best = LaunchWindow(begin, n + 1, pattern)
                break
    if best is None:  # every test can be met within two steps, see _Wanted.of
        raise AssertionError("no window holds what the step has")
    return best


@dataclass(frozen=True)
class _Wanted:
    """What a window must hold: so many launches of some positions, or all of one group of them.

    Args:
        groups: Positions; any one group will do.
        number: How many of a group; all where it is 0.
    """

    groups: tuple[frozenset[int], ...]
    number: int

    @classmethod
    def of(cls, launches: Launches, keys: Sequence[KernelKey], layers: Sequence[int | None]) -> _Wanted:
        """What the step has of these.

        Raises:
            NotMeasuredError: ``counters-no-launch``.
        """
        found = [n for n, key in enumerate(keys) if launches.includes(key, layers[n])]
        if launches.profile == "outside":
            found = [n for n in found if layers[n] is None]
        by_layer: dict[int | None, set[int]] = {}
        for n in found:
            by_layer.setdefault(layers[n], set()).add(n)
        by_layer.pop(None, None)
        needed = launches.profile if isinstance(launches.profile, int) else 1
        known = by_layer if launches.profile == "layer" else found
        if len(found) < needed or not known:
            where = {"layer": " in a layer", "outside": " outside the layers"}.get(str(launches.profile), "")
            raise NotMeasuredError(
                f"the traced decode step has {len(known)} launches of {launches}{where}, {needed} are to be counted",
                code="counters-no-launch",
            )
        if launches.profile == "layer":
            fullest = max(map(len, by_layer.values()))
            return cls(tuple(frozenset(one) for one in by_layer.values() if len(one) == fullest), 0)
        return cls((frozenset(found),), launches.profile if isinstance(launches.profile, int) else 0)

    def counting(self) -> Callable[[int], bool]:
        """A function that takes one position after the other and says when there is enough."""
        left = [set(group) for group in self.groups]
        taken = 0

        def take(position: int) -> bool:
            nonlocal taken
            for group in left:
                if position in group:
                    group.discard(position)
                    taken += 1
            return taken >= self.number if self.number else any(not group for group in left)

        return take
