"""Where the host's time goes, as an outcome tells it: figures of a step, placement, and the functions that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.calls.host_difference import HostOutcome, changed_functions
from perfgate.calls.host_profile import FIGURES, HostProfile
from perfgate.calls.import_times import changed_imports
from perfgate.judge.evidence import Evidence
from perfgate.metrics.sides import Side
from perfgate.units import plural

MOST_FUNCTIONS, MOST_PACKAGES = 20, 10
MOST_CPUS, MOST_THREADS = 8, 6
"""That are named."""


def host_of(evidence: Evidence) -> HostOutcome | None:
    """The same of a cell's sampled trials; ``None`` where there are none."""
    return host_outcome(evidence.held("host"))


def host_outcome(sides: Mapping[Side, Sequence[HostProfile]]) -> HostOutcome | None:
    """What the sampled trials of each side show; of several the last one is taken.

    Args:
        sides: The profiles of each side that was measured, in the order of time.

    Returns:
        ``None`` where no side has one; without functions where one side has none.
    """
    profiles = {side: own[-1] for side, own in sides.items() if own}
    if not profiles:
        return None
    both = len(profiles) > 1
    changes = changed_functions(profiles["base"], profiles["head"]) if both else []
    imports = changed_imports(profiles["base"].imports, profiles["head"].imports) if both else []
    return HostOutcome(
        steps={side: own.steps for side, own in profiles.items()},
        figures={name: {side: own.mean(name) for side, own in profiles.items()} for name in FIGURES},
        placement={side: _placement(own) for side, own in profiles.items()},
        functions=tuple(changes[:MOST_FUNCTIONS]),
        imported={side: _imported(own) for side, own in profiles.items()},
        imports=tuple(imports[:MOST_PACKAGES]),
    )


def _imported(own: HostProfile) -> tuple[int, float]:
    modules, spent_us = zip(*own.imports.values(), strict=True) if own.imports else ((), ())
    return sum(modules), sum(spent_us) * 1e-6


def _placement(own: HostProfile) -> str:
    cpus = ", ".join(map(str, own.cpus[:MOST_CPUS])) + (" and more" if len(own.cpus) > MOST_CPUS else "")
    most = sorted(own.threads.items(), key=lambda thread: (-thread[1][0], thread[0]))
    named = [f"{many} {name}{f' (held to {fewest})' if fewest < own.allowed else ''}" for name, (many, fewest) in most]
    others = ", ".join(named[:MOST_THREADS]) + (" and others" if len(named) > MOST_THREADS else "")
    return f"on CPU {cpus} of {plural(own.allowed, 'CPU')} allowed; threads: {others}"
