"""What is known of a cell beside its gates: states and clocks of its machine, its baseline, whose figures they are."""

from __future__ import annotations

import operator
from typing import Annotated, Literal

from pydantic import Field

from perfgate.metrics.sides import Side
from perfgate.models import Frozen


class GpuOutcome(Frozen):
    """What the GPUs of one side did over its judged trials.

    Args:
        sm_mhz: Median over the trials of the SM clock in decode.
        sm_low_mhz: The lowest SM clock seen while iterations ran.
        sm_high_mhz: The highest.
        memory_mhz: Median of the memory clock.
        power_w: Median power of one GPU.
        temperature_c: The highest temperature.
        events: Event reasons seen, but for idling and a setting of the clocks.
    """

    sm_mhz: int
    sm_low_mhz: int
    sm_high_mhz: int
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    events: tuple[str, ...] = ()


class StatesOutcome(Frozen):
    """Two states of the machine that were seen, and compared apart (docs/states.md).

    Args:
        told_by: ``probe``, a fixed piece of work beside each iteration; or ``steps``, the iterations' own times.
        gap: Decode steps of the slow state by those of the fast one, a ratio minus one.
        trials: Judged trials of each side.
        slow: How many of them were in the slow state for more than half of their iterations.
        common: Pairs that have a state on both sides, by state.
        cut: Share of the iterations that are in no state: those in which it changed, and trials that nobody can place.
        at_most: What the head's being slow more often could cost at most, with probability 1 - beta, as a ratio: the
            bound on the share of pairs in which it is, times the gap.
        everywhere: Whether that is below the margins, so that a pass holds for the mean over both states.
        blocks_from: In how many pairs the head must be slow for longer, and in none the base, for it to be blocked;
            ``None`` where that blocks at no number.
    """

    told_by: Literal["probe", "steps"]
    gap: float
    trials: dict[Side, int]
    slow: dict[Side, int]
    common: dict[Literal["slow", "fast"], int]
    cut: float
    at_most: float
    everywhere: bool
    blocks_from: int | None = None


class MetRequests(Frozen):
    """How many requests of all trials of a side met an objective; those of one server depend on each other.

    Args:
        met: Those that met every bound.
        requests: All that were not cancelled.
    """

    met: int
    requests: int


class BaselineOutcome(Frozen):
    """The stored baseline that a cell was held against.

    Args:
        digest: Digest of its newest entry, which identifies the whole lineage.
        machine_class: The machines it speaks for.
        visits: Visits since its last change; from four on its verdict can block.
        first_utc: Begin of the earliest of them, ISO 8601.
        last_utc: Begin of the latest.
        anchor: The build that was measured beside the head and beside visits, in words; then ratios to it are compared.
            Empty where times are.
    """

    digest: str
    machine_class: str
    visits: int
    first_utc: str
    last_utc: str
    anchor: str = ""


class SubjectSetting(Frozen):
    """One side as it was asked for.

    Args:
        words: ``key=value`` words; for a head those in which it differs from its base. Values of environment variables
            are left out.
        ref: The git ref that it was built from, in words; empty where it was not built.
        revision: Commit and changes of that, short.
        title: First line of the commit's message.
        files: Digits that name what its files were; not written where that is not known.
    """

    words: tuple[str, ...]
    ref: str = ""
    revision: str = ""
    title: str = ""
    files: Annotated[str, Field(exclude_if=operator.not_)] = ""


class Setting(Frozen):
    """What a cell's figures are of.

    Args:
        run: Name of the run that measured all of it; empty where different ones did.
        scenario: Its file, as it was given.
        envelope: Whether it declares what decode steps may run.
        model: Folder or name, in words.
        batch: Requests submitted together.
        input_tokens: Of each request.
        output_tokens: Of each request.
        images: What each request shows beside its prompt, in words; empty, and not written, where it shows none.
        load: What a server was given, in words; the three before are 0 then. Empty, and not written, for a batch.
        machines: Those it was measured on, in words.
        begun_utc: Begin of the first visit, ISO 8601; empty where there was none.
        subjects: By side.
        iterations: How many each trial has and why, where that was chosen; empty, and not written, where it was not.
    """

    run: str
    scenario: str
    envelope: bool
    model: str
    batch: int
    input_tokens: int
    output_tokens: int
    images: str = Field(default="", exclude_if=operator.not_)
    load: Annotated[str, Field(exclude_if=operator.not_)] = ""
    machines: tuple[str, ...]
    begun_utc: str
    subjects: dict[Side, SubjectSetting]
    iterations: str = Field(default="", exclude_if=operator.not_)
