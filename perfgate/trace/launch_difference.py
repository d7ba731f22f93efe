"""What a build launches otherwise in a decode step, with what its kernels take: exact in what, measured in how long.

Only kernels that differ are priced. The time of all others moves between cards and hours, and is left to timed trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfgate.trace.decode_step import DecodeSteps, KernelKey
from perfgate.trace.difference import PAGEABLE, KernelChange, StepDifference, difference, nearest
from perfgate.trace.families import short_name
from perfgate.trace.launch_shapes import Shapes
from perfgate.units import NS_PER_S, format_mean

A_WAIT_MORE = 0.9
"""So many waits more in a step, on average, are one in each: how often a step waits may vary by some."""
NAMED = 4
"""Shapes of a kernel that a line names."""


@dataclass(frozen=True)
class ShapeChange:
    """A kernel that both builds launch, in other shapes.

    Args:
        key: The kernel.
        base: Shapes that the base launches it in, the most frequent first.
        head: The head's.
    """

    key: KernelKey
    base: tuple[str, ...]
    head: tuple[str, ...]

    @property
    def line(self) -> str:
        """As in a diff."""
        place = f" {self.key.place}" if self.key.place else ""
        return f"~ {self.key.role}{place} {short_name(self.key.name)}: {_listed(self.base)} -> {_listed(self.head)}"


@dataclass(frozen=True)
class LaunchDifference:
    """A decode step of the head beside the base's.

    Args:
        steps: Kernels and copies that differ.
        shapes: Kernels that both launch, in other shapes.
        waits: How much more often the head's host waits for the device in a step.
        cost_s: What the kernels that differ take more in a step, seconds; negative where they take less.
    """

    steps: StepDifference
    shapes: tuple[ShapeChange, ...]
    waits: float
    cost_s: float

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.steps or self.shapes or self.waits_more)

    @property
    def waits_more(self) -> bool:
        """Whether the head's host waits for the device where the base's does not."""
        return self.waits >= A_WAIT_MORE

    @property
    def pageable(self) -> list[str]:
        """Copies of pageable memory that the head makes and the base does not, or fewer of them."""
        return [kind for kind, (b, h) in self.steps.copies.items() if kind.endswith(PAGEABLE) and h > b]

    @property
    def headline(self) -> str:
        """The whole in one line, with its price."""
        causes = [self.steps.headline] if self.steps else []
        if self.waits_more:
            causes.append(f"the host waits for the device {format_mean(self.waits)} times more in a step")
        if self.shapes:
            named = [" ".join(filter(None, (change.key.role, change.key.place))) for change in self.shapes]
            causes.append(f"other launch shapes of {', '.join(dict.fromkeys(named))}")
        return f"{self.cost_s * 1e6:+.2f} us a step by the traced time of its kernels: {'; '.join(causes)}"

    @property
    def lines(self) -> list[str]:
        """Each change as a line."""
        return [*self.steps.lines, *(change.line for change in self.shapes)]


def launch_difference(base: DecodeSteps, head: DecodeSteps) -> LaunchDifference:
    """Hold the head's most frequent decode step against that of the base which is nearest to it.

    Args:
        base: The base's steps, of one trial or pooled.
        head: The head's.
    """
    pattern = head.patterns[0]
    steps = difference(base, head, nearest(pattern, head, base), pattern)
    shapes = tuple(shape_changes(base, head))
    cost_ns = sum(_kernels_ns(steps.kernels, base, head)) + sum(_shapes_ns(shapes, steps, base, head))
    return LaunchDifference(steps, shapes, head.waits / head.steps - base.waits / base.steps, cost_ns / NS_PER_S)


def _launch_ns(steps: DecodeSteps) -> dict[KernelKey, float]:
    """Mean time of a launch of each kernel."""
    rows = zip(steps.keys, steps.key_ns, steps.key_launches, strict=True)
    return {key: ns / launches for key, ns, launches in rows if launches}


def _kernels_ns(changes: tuple[KernelChange, ...], base: DecodeSteps, head: DecodeSteps) -> Iterator[float]:
    """What each change takes more: kernels of the head at the head's times, those of the base at the base's."""
    before, after = _by_name(base), _by_name(head)
    for change in changes:
        new_ns, old_ns = after.get((change.role, change.head), 0.0), before.get((change.role, change.base), 0.0)
        if change.kind in ("more", "fewer"):
            yield (change.head_launches - change.base_launches) * (new_ns if change.kind == "more" else old_ns)
        else:
            yield change.head_launches * new_ns - change.base_launches * old_ns


def _by_name(steps: DecodeSteps) -> dict[tuple[str, str], float]:
    """Mean time of a launch by role and name, wherever in a layer it is: places are guessed, and may move."""
    sums: dict[tuple[str, str], list[int]] = {}
    for key, ns, launches in zip(steps.keys, steps.key_ns, steps.key_launches, strict=True):
        own = sums.setdefault((key.role, key.name), [0, 0])
        own[0] += ns
        own[1] += launches
    return {key: ns / launches for key, (ns, launches) in sums.items() if launches}


def _shapes_ns(
    shapes: tuple[ShapeChange, ...], steps: StepDifference, base: DecodeSteps, head: DecodeSteps
) -> Iterator[float]:
    """What other shapes take more, launches that both make."""
    counted = {(change.role, change.head) for change in steps.kernels}
    before, after = _launch_ns(base), _launch_ns(head)
    launches = dict(zip(head.keys, head.key_launches, strict=True))
    for change in shapes:
        if (change.key.role, change.key.name) not in counted:
            yield launches[change.key] / head.steps * (after[change.key] - before[change.key])


def shape_changes(base: DecodeSteps, head: DecodeSteps) -> list[ShapeChange]:
    """Kernels of both builds whose shapes differ, in the base's order.

    Where either build launches a kernel in each shape equally often in every step, the numbers a step are compared.
    A grid may follow the length of the context; such a kernel differs where the builds have no shape in common.
    """
    if not (base.key_shapes and head.key_shapes):
        return []
    after = dict(zip(head.keys, head.key_shapes, strict=True))
    pairs = ((key, own, after.get(key, {})) for key, own in zip(base.keys, base.key_shapes, strict=True))
    return [
        ShapeChange(key, _by_number(b), _by_number(h))
        for key, b, h in pairs
        if b and h and _differ((b, base.steps), (h, head.steps))
    ]


def _differ(*sides: tuple[Shapes, int]) -> bool:
    """Whether shapes differ, given each build's launches by shape, and its steps."""
    (base, _), (head, _) = sides
    if any(launches % steps for shapes, steps in sides for launches in shapes.values()):
        return not base.keys() & head.keys()
    before, after = ({shape: count // steps for shape, count in shapes.items()} for shapes, steps in sides)
    # Only launched more often, a kernel has the same shapes.
    return before.keys() != after.keys() or (before != after and sum(before.values()) == sum(after.values()))


def _by_number(shapes: Shapes) -> tuple[str, ...]:
    return tuple(sorted(shapes, key=lambda shape: (-shapes[shape], shape)))


def _listed(shapes: Sequence[str]) -> str:
    more = len(shapes) - NAMED
    return ", ".join(shapes[:NAMED]) + (f" and {more} more" if more > 0 else "")
