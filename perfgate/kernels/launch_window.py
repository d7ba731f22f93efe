"""Which launches of a decode step ncu replays: a window that holds one layer and all that is outside of layers.

What a counted trial costs follows from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfgate.counters.launch_table import COUNTERS, OF_THE_LAUNCH
from perfgate.errors import NotMeasuredError
from perfgate.metrics.trial import Kind
from perfgate.record.cost import PASS_S, Earlier, KindCost
from perfgate.scenario.counter_trials import CounterTrials, Launches
from perfgate.scenario.plan import Cell
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern


@dataclass(frozen=True)
class LaunchWindow:
    """Launches of a decode step that follow one another, perhaps into the step after it.

    Args:
        begin: Position of the first in its step, from 0.
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
        NotMeasuredError: ``counters-not-countable``: the step has none of them, or fewer.
    """
    pattern = steps.patterns[0]
    keys = [steps.keys[kernel] for kernel in pattern.kernels]
    wanted = [_wanted(entry, keys, pattern.layers()) for entry in launches]

    def count(begin: int) -> int:
        """Launches from this one to the last that is needed: so many of one of the groups."""
        ends = (
            min(sorted((position - begin) % len(keys) for position in group)[needed - 1] for group in groups)
            for groups, needed in wanted
        )
        return 1 + max(ends)

    begin = min(range(len(keys)), key=count)
    return LaunchWindow(begin, count(begin), pattern)


def _wanted(
    launches: Launches, keys: Sequence[KernelKey], layers: Sequence[int | None]
) -> tuple[Sequence[Sequence[int]], int]:
    """Groups of positions in the step, and how many of any one group a window must hold.

    Raises:
        NotMeasuredError: ``counters-not-countable``.
    """
    positions = [n for n, key in enumerate(keys) if includes(launches, key, layers[n])]
    if launches.profile == "outside":
        positions = [n for n in positions if layers[n] is None]
    groups = [positions] if positions else []
    if launches.profile == "layer":
        by_layer = [[n for n in positions if layers[n] == layer] for layer in {layers[n] for n in positions} - {None}]
        groups = [group for group in by_layer if len(group) == max(map(len, by_layer))]
    needed = launches.profile if isinstance(launches.profile, int) else 1
    if len(positions) < needed or not groups:
        where = {"layer": " in a layer", "outside": " outside the layers"}.get(str(launches.profile), "")
        candidates = groups if launches.profile == "layer" else positions
        raise NotMeasuredError(
            f"the traced decode step has {len(candidates)} launches of {launches}{where}, {needed} are to be counted",
            code="counters-not-countable",
        )
    return groups, needed if isinstance(launches.profile, int) else len(groups[0])


def includes(launches: Launches, key: KernelKey, layer: int | None) -> bool:
    """Whether a launch of a kernel in a layer, or outside of them, is one of these."""
    if launches.place not in (None, key.place) or launches.role not in (None, key.role):
        return False
    if launches.layer not in (None, layer):
        return False
    return launches.match is None or re.search(launches.match, key.name) is not None


def metrics_counted(cell: Cell, architecture: int | None) -> tuple[str, ...]:
    """What ncu is asked for in a counted trial of a cell, see :func:`metrics_to_read`."""
    gated = [gate.gate.metric for gate in cell.gates if gate.gate.measured.kind == "counted"]
    return metrics_to_read(cell.counters, cell.counted, architecture, gated)


def metrics_to_read(
    launches: Sequence[Launches], counted: CounterTrials, architecture: int | None, gated: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names that ncu is asked for, each once: what is collected, bounded and gated.

    Args:
        launches: What is counted.
        counted: How.
        architecture: Compute capability times ten; names of other ones are left out.
        gated: Counters that gates rest on.
    """
    bounded = [name for entry in launches for name in entry.metrics]
    # A name that ncu does not know fails the whole trial: unasked, only those that a real ncu has listed are asked for.
    usual = [name for name, counter in COUNTERS.items() if counter.is_known_on(architecture)]
    wanted = [*(counted.collect or usual), *bounded, *gated]
    named = {
        name: [spelling.metric for spelling in counter.names_on(architecture)[:1]] for name, counter in COUNTERS.items()
    }
    return tuple(dict.fromkeys(metric for name in wanted for metric in named.get(name, [name])))


def with_window(cell: Cell, priced: KindCost, history: Mapping[Kind, Earlier]) -> KindCost:
    """Launches and passes of a counted trial: as last counted; else the window of the last trace, a pass a counter."""
    taken = {kind: earlier.record.trials for kind, earlier in history.items()}
    if counted := [trial.counted for trial in taken.get("counted", ()) if trial.counted]:
        passes = max(step.passes for step in counted)
        return dataclasses.replace(priced, window=max(len(step.launches) for step in counted), passes=passes)
    passes = max(sum(not name.startswith(OF_THE_LAUNCH) for name in metrics_counted(cell, None)), 1)
    traces = [trial.decode for trial in taken.get("traced", ()) if trial.decode]
    try:
        window = choose_window(traces[-1], cell.counters).count if traces else None
    except NotMeasuredError:  # said when it is tried: the next trace may have what is asked for
        window = None
    expect = cell.measure.expect
    if window is None or expect is None:
        return dataclasses.replace(priced, window=window, passes=passes)
    trial_s = expect.trial_s + window * passes * PASS_S
    minutes = tuple(starts * trial_s / 60 for starts in priced.starts)
    source = "measure.expect for the engine's start, and 35 ms a pass"
    return dataclasses.replace(priced, window=window, passes=passes, minutes=minutes, source=source)
