"""Where the difference between two decode steps comes from: kernels by role, other work of the device, idle time.

A step runs from its first kernel to that of the next step. Its length is, exactly, the kernel time of all roles, plus
copies and memsets that no kernel covers less the time in which kernels overlap, plus the idle time. So the differences
of the parts add up to the difference of the steps; what the tracer hides or adds is the residual to the step measured
without one. What a rank waits for others in a collective can be idle time as well
(:func:`perfgate.trace.rank_steps.waits_as_idle`). Means over the same steps keep the sum, and they are taken over the
middle half of a trial's steps by length, so that a disturbed step does not enter.
"""

from __future__ import annotations

import difflib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from perfgate.models import Frozen
from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.decode_step import DecodeSteps, KernelKey
from perfgate.trace.idle_gaps import OTHER_RANKS
from perfgate.units import NS_PER_S

COPIES = "copies, less overlap"
"""Copies and memsets that no kernel covers, less the time in which kernels ran side by side, and less that in which a
step's work ran beside the next one's."""
BETWEEN = "idle between steps"
"""What a step's length has beyond its own work; where its work lasts into the next step it has nothing."""
GRAPH_IDLE = "idle (graph)"
"""Between two kernels of one graph launch, where the host plays no part."""
WAITING = f"idle ({OTHER_RANKS})"
"""In collectives that the other ranks have not reached."""
OF_NO_HOST = (GRAPH_IDLE, WAITING)
"""Idle time in which the host plays no part."""
UNTOLD = 0.5
"""Where traces are off by a larger share of what untraced steps differ by, they do not tell the cause."""
SHARED = 0.001
"""A difference that is a smaller share of the step has no shares itself: its parts are noise."""
LONGEST_PLACE = 8
"""A longer stretch of other kernels is another step altogether, and says nothing about what replaced what."""

_Roles = tuple[str, ...]


class Part(Frozen):
    """One part of a step; figures are per step.

    Args:
        name: A role; several, like ``fused: norm+quantize``, where kernels of one replaced those of another; or what
            kept the device busy otherwise; or a kind of idle time, see :data:`perfgate.trace.idle_gaps.GAPS`.
        pair_sd_s: Standard deviation of the pairs' differences; ``None`` with one pair.
        base_launches: Kernels in the base's most frequent step; ``None`` for what is not a kernel.
        head_launches: Kernels in the head's.
    """

    name: str
    kind: Literal["kernels", "busy", "idle"]
    base_s: float
    head_s: float
    difference_s: float
    pair_sd_s: float | None = None
    base_launches: int | None = None
    head_launches: int | None = None


class Attribution(Frozen):
    """A difference in decode steps, split.

    Args:
        base_s: The base's step while traced.
        difference_s: ``head_s - base_s``: the sum over the parts.
        parts: Kernels with the largest difference first, then other work, then idle time.
        measured_s: The difference of the steps measured without a tracer; ``None`` where there are none.
        residual_s: ``measured_s - difference_s``: what the traces do not explain.
        host_s: The share of ``difference_s`` in which the device waited for the host: the difference in idle time
            outside graphs and collectives where a side's slack is used up, else 0.
        base_slack_s: How far ahead of the device the base's host was; negative where the device waited.
    """

    pairs: int
    base_s: float
    head_s: float
    difference_s: float
    parts: tuple[Part, ...]
    measured_s: float | None = None
    residual_s: float | None = None
    host_s: float = 0.0
    base_slack_s: float | None = None
    head_slack_s: float | None = None

    @property
    def device_parts(self) -> list[Part]:
        """What neither the host nor other ranks decide: kernels, copies, and the gaps within graphs."""
        return [part for part in self.parts if part.kind != "idle" or part.name == GRAPH_IDLE]

    @property
    def device_s(self) -> float:
        """By how much that differs."""
        return sum(part.difference_s for part in self.device_parts)

    @property
    def head_late(self) -> bool:
        """Whether the head's device waited for the host."""
        return _is_late(self.head_slack_s)

    @property
    def waits_s(self) -> tuple[float, float]:
        """All other time of a step, base and head: idle outside graphs, and waiting for other ranks in collectives."""
        rest = [part for part in self.parts if part not in self.device_parts]
        return sum(part.base_s for part in rest), sum(part.head_s for part in rest)

    @property
    def misled(self) -> bool:
        """Whether the profiler made the device wait so differently that only its own work tells what changed.

        A host that is slowed down by the profiler may be late for one build and not for the other. Then the traced
        difference is off by more than half of the untraced one, and what the device does itself by at most half. Where
        communication is not told from waiting, nobody knows what it does itself; nor is a difference below a thousandth
        of the step explained.
        """
        if self.measured_s is None or self.residual_s is None or abs(self.measured_s) < SHARED * self.base_s:
            return False
        names = {part.name for part in self.parts}
        if WAITING not in names and any(COMMUNICATION in name for name in names):
            return False
        most_s = UNTOLD * abs(self.measured_s)
        return abs(self.residual_s) > most_s >= abs(self.measured_s - self.device_s)

    @property
    def told_s(self) -> float:
        """The difference that its parts explain: the traced one, or where that misleads the untraced one."""
        return self.measured_s if self.misled and self.measured_s is not None else self.difference_s


def attribute(
    pairs: Sequence[tuple[DecodeSteps, DecodeSteps]],
    measured_s: float | None = None,
    listed: Sequence[tuple[DecodeSteps, DecodeSteps]] = (),
) -> Attribution | None:
    """Split the difference of the head's steps to the base's.

    Args:
        pairs: Paired traced trials as (base, head).
        measured_s: Head minus base of the step measured without a tracer, in seconds.
        listed: The same of one rank, where an engine has several: what it runs says which launches are more or fewer.
            Stages of a pipeline run other kernels, so that a step of one tells nothing of another one's.

    Returns:
        ``None`` where no pair has a step of known length on both sides.
    """
    whole = [pair for pair in pairs if all(any(ns is not None for ns in side.step_ns) for side in pair)]
    if not whole:
        return None
    base, head = [b for b, _ in whole], [h for _, h in whole]
    usual = (_usual_step([b for b, _ in listed] or base), _usual_step([h for _, h in listed] or head))
    linked = _linked_roles(*usual)
    cost = [tuple(_merged(_cost_ns(side), linked) for side in pair) for pair in whole]
    names = dict.fromkeys(name for pair in cost for side in pair for name in side)
    parts = [_part(name, [(b.get(name, 0.0), h.get(name, 0.0)) for b, h in cost], linked, usual) for name in names]
    order = {"kernels": 0, "busy": 1, "idle": 2}
    parts.sort(key=lambda part: (order[part.kind], -abs(part.difference_s)))
    base_s, head_s = (statistics.fmean(_step_ns(side) for side in sides) / NS_PER_S for sides in (base, head))
    slacks = (_slack_s(base), _slack_s(head))
    waited = any(map(_is_late, slacks))
    difference_s = head_s - base_s
    return Attribution(
        pairs=len(whole),
        base_s=base_s,
        head_s=head_s,
        difference_s=difference_s,
        parts=tuple(parts),
        measured_s=measured_s,
        residual_s=None if measured_s is None else measured_s - difference_s,
        host_s=sum(p.difference_s for p in parts if p.kind == "idle" and p.name not in OF_NO_HOST) if waited else 0.0,
        base_slack_s=slacks[0],
        head_slack_s=slacks[1],
    )


def _is_late(slack_s: float | None) -> bool:
    return slack_s is not None and slack_s <= 0


_Key = tuple[Literal["kernels", "busy", "idle"], str]


def _part(
    name: _Key, values_ns: Sequence[tuple[float, float]], linked: Mapping[str, _Roles], usual: tuple[_Step, _Step]
) -> Part:
    kind, label = name
    differences = [(head - base) / NS_PER_S for base, head in values_ns]
    base_s, head_s = (statistics.fmean(side) / NS_PER_S for side in zip(*values_ns, strict=True))
    launches: tuple[int | None, int | None] = (None, None)
    if kind == "kernels":
        roles = linked.get(label, (label,))
        counted = [sum(key.role in roles for key in step) for step in usual]
        launches = (counted[0], counted[1])
        label = _label(roles, *counted)
    return Part(
        name=label,
        kind=kind,
        base_s=base_s,
        head_s=head_s,
        difference_s=statistics.fmean(differences),
        pair_sd_s=statistics.stdev(differences) if len(differences) > 1 else None,
        base_launches=launches[0],
        head_launches=launches[1],
    )


def _label(roles: _Roles, base: int, head: int) -> str:
    if len(roles) == 1:
        return roles[0]
    what = "fused" if head < base else "split" if head > base else "renamed"
    return f"{what}: {'+'.join(roles)}"


def _middle_half(steps: DecodeSteps) -> list[int]:
    """Rows of the steps of known length without the shortest and the longest quarter; ties go by their order."""
    lengths = sorted((ns, row) for row, ns in enumerate(steps.step_ns) if ns is not None)
    cut = len(lengths) // 4
    return [row for _, row in lengths[cut : len(lengths) - cut]]


def _step_ns(steps: DecodeSteps) -> float:
    return statistics.fmean(steps.step_ns[row] or 0 for row in _middle_half(steps))


def _cost_ns(steps: DecodeSteps) -> dict[_Key, float]:
    """What a step is made of, as means over the middle half of the steps; they add up to the step."""
    rows = _middle_half(steps)

    def mean(column: Sequence[int]) -> float:
        return statistics.fmean(column[row] for row in rows)

    cost: dict[_Key, float] = {("kernels", role): mean(column) for role, column in steps.role_ns.items()}
    cost["busy", COPIES] = mean(steps.busy_ns) - sum(cost.values())
    for gap, column in steps.gap_ns.items():
        cost["idle", f"idle ({gap})"] = mean(column)
    left = _step_ns(steps) - sum(cost.values())
    cost["busy", COPIES] += min(left, 0.0)
    cost["idle", BETWEEN] = max(left, 0.0)
    return cost


def _merged(cost: Mapping[_Key, float], linked: Mapping[str, _Roles]) -> dict[_Key, float]:
    """With the roles that replaced each other as one, under the name of the first of them."""
    merged: dict[_Key, float] = {}
    for (kind, name), ns in cost.items():
        key: _Key = (kind, linked[name][0] if kind == "kernels" and name in linked else name)
        merged[key] = merged.get(key, 0.0) + ns
    return merged


def _slack_s(sides: Sequence[DecodeSteps]) -> float | None:
    medians = [
        statistics.median(slacks) for side in sides if (slacks := [ns for ns in side.slack_ns if ns is not None])
    ]
    return statistics.fmean(medians) / NS_PER_S if medians else None


_Step = tuple[KernelKey, ...]


def _usual_step(sides: Sequence[DecodeSteps]) -> _Step:
    """The kernels of the most frequent step over all trials, in order."""
    seen: Counter[_Step] = Counter()
    for side in sides:
        for pattern in side.patterns:
            seen[tuple(side.keys[index] for index in pattern.kernels)] += pattern.steps
    return max(seen, key=lambda step: seen[step], default=())


def _linked_roles(base: _Step, head: _Step) -> dict[str, _Roles]:
    """For each role whose kernels replaced those of another, all roles that did so together, in alphabetical order.

    Kernels that both sides run equally often hold the places; where between two of them other kernels run than before,
    these replaced those. That nets what a sum by role cannot: a quantisation that a norm now does, a name that another
    rule matches.
    """
    counts = Counter(base), Counter(head)
    fixed = {key for key in counts[0] | counts[1] if counts[0][key] == counts[1][key]}
    before, after = (_places(step, fixed) for step in (base, head))
    groups: list[set[str]] = []
    for place in before.keys() & after.keys():
        for link in _replaced(before[place], after[place]):
            joined = link.union(*(group for group in groups if group & link))
            groups = [group for group in groups if not group & link] + [joined]
    return {role: tuple(sorted(group)) for group in groups for role in group}


def _places(step: _Step, fixed: set[KernelKey]) -> dict[tuple[KernelKey | None, KernelKey | None], _Step]:
    """The usual stretch of kernels that are not fixed, by the fixed ones before and after it."""
    stretches: dict[tuple[KernelKey | None, KernelKey | None], Counter[_Step]] = {}
    left: KernelKey | None = None
    stretch: list[KernelKey] = []
    for key in (*step, None):
        if key is None or key in fixed:
            stretches.setdefault((left, key), Counter())[tuple(stretch)] += 1
            left, stretch = key, []
        else:
            stretch.append(key)
    return {place: seen.most_common(1)[0][0] for place, seen in stretches.items()}


def _replaced(before: _Step, after: _Step) -> Iterator[set[str]]:
    """Sets of roles whose kernels replaced each other in one place; none where kernels only came or only went.

    A role that is gone went into the kernel before it, as its epilogue, or else into the one after it, if that kernel
    is another one than before. A role that is new came out of such a neighbour, unless the neighbour took in another.
    """
    if not before or not after or max(len(before), len(after)) > LONGEST_PLACE:
        return
    roles = [key.role for key in before], [key.role for key in after]
    blocks = difflib.SequenceMatcher(None, *roles, autojunk=False).get_opcodes()
    taken: set[int] = set()
    for tag, i, i_end, j, j_end in sorted(blocks):  # what is gone before what is new: delete, equal, insert, replace
        if tag == "replace":
            yield {*roles[0][i:i_end], *roles[1][j:j_end]}
        elif tag != "equal":
            beside = [(i - 1, j - 1), (i_end, j_end)]
            kept = [(m, n) for m, n in beside if 0 <= m < len(before) and 0 <= n < len(after) and m not in taken]
            neighbour = next((m for m, n in kept if before[m] != after[n]), None)
            if neighbour is not None:
                taken.add(neighbour)
                yield {roles[0][neighbour], *roles[0][i:i_end], *roles[1][j:j_end]}
