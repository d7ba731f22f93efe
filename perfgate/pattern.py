"""What the decode steps of one traced trial ran, as a record keeps it: step patterns, and times by step and role."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KernelKey(_Frozen):
    """A kernel's identity across builds.

    Args:
        role: Its family; ``unlisted`` where no rule matched.
        place: Where in a layer it stands, of :data:`perfgate.kernels.PLACES`; empty where that is not known.
        name: Normalised name.
    """

    role: str
    place: str = ""
    name: str


class Pattern(_Frozen):
    """Steps that ran the same kernels, each as often and as many of them from graphs, and the same copies.

    Args:
        steps: How many did.
        kernels: Indices into :attr:`DecodeSteps.keys`, in the order of one such step.
        outside_graphs: Positions in ``kernels`` of those that no CUDA graph launched, ascending.
        copies: Copies a step by kind of :data:`perfgate.kernels.COPY_KINDS`; kinds that do not occur are left out.
    """

    steps: int
    kernels: tuple[int, ...]
    outside_graphs: tuple[int, ...] = ()
    copies: dict[str, int] = {}


class DecodeSteps(_Frozen):
    """The pure, complete decode steps of one traced trial, counted on each device; times in integer nanoseconds.

    Columns hold an entry a step, in order; a figure that a step does not have (the last has no successor) is ``None``.

    Args:
        source: The profiler and its version.
        keys: Every kernel that occurs.
        patterns: The most frequent first.
        step_ns: First kernel to that of the next step.
        span_ns: First kernel, copy or memset to the end of the last.
        busy_ns: Union of kernels, copies and memsets.
        kernel_ns: Sum over the kernels.
        slack_ns: How far before its predecessor's end a step was launched.
        call_ns: The host's launching calls.
        gap_ns: Idle time by what it goes with, see :data:`perfgate.breakdown.GAPS`.
        role_ns: Kernel time by role.
        key_launches: Launches of each key, over all steps.
        key_ns: Kernel time of each key, over all steps.
        copy_bytes: Bytes copied by kind, over all steps.
        cautions: What the reader should know: reason code and words.
    """

    source: str
    keys: tuple[KernelKey, ...]
    patterns: tuple[Pattern, ...]
    step_ns: tuple[int | None, ...]
    span_ns: tuple[int, ...]
    busy_ns: tuple[int, ...]
    kernel_ns: tuple[int, ...]
    slack_ns: tuple[int | None, ...]
    call_ns: tuple[int, ...]
    gap_ns: dict[str, tuple[int, ...]]
    role_ns: dict[str, tuple[int, ...]]
    key_launches: tuple[int, ...]
    key_ns: tuple[int, ...]
    copy_bytes: dict[str, int] = {}
    cautions: tuple[tuple[str, str], ...] = ()
