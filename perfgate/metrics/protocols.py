"""What a metric reads of a trial, as protocols: metrics know no record, and a record knows no metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class IterationLike(Protocol):
    """One batch run to completion, as the record keeps it; all times in nanoseconds."""

    @property
    def ttft_ns(self) -> Sequence[int]:
        """Per request: submission to first delivery."""

    @property
    def e2e_ns(self) -> Sequence[int]:
        """Per request: submission to last delivery."""

    @property
    def itl_ns(self) -> Sequence[int]:
        """Per pure decode step: the gap between deliveries, divided by the tokens a request got in it."""

    @property
    def output_tokens(self) -> int:
        """Tokens generated for each request."""

    @property
    def elapsed_ns(self) -> int:
        """First submission to last delivery."""


class StartupLike(Protocol):
    """What starting an engine cost and yielded."""

    @property
    def ready_ns(self) -> int:
        """Spawn of the worker to an engine ready for requests."""

    @property
    def model_memory_bytes(self) -> int | None:
        """Memory the weights take, where the engine tells."""

    @property
    def kv_token_capacity(self) -> int | None:
        """Tokens the KV cache holds, where the engine tells."""


class TelemetryLike(Protocol):
    """What one GPU did during a trial."""

    @property
    def energy_uj(self) -> int | None:
        """Energy over the measured iterations in microjoules, where the GPU tells."""


class DecodeLike(Protocol):
    """What the decode steps of a traced trial were made of; columns hold an entry a step."""

    @property
    def slack_ns(self) -> Sequence[int | None]:
        """How much longer the host could have worked in a step; ``None`` where the trace does not show it."""

    @property
    def work_ns(self) -> Sequence[int | None]:
        """How long the host worked in a step; ``None``, or nothing at all, where the trace does not show it."""

    @property
    def role_ns(self) -> Mapping[str, Sequence[int]]:
        """Kernel time of each role that occurs."""

    @property
    def tick_ns(self) -> int:
        """The step of the clock that stamped the kernels, at least 1."""


class CountedLike(Protocol):
    """What ncu counted in a trial."""

    def mean(self, counter: str, role: str, place: str = "") -> float | None:
        """A counter's mean over the launches of a role, or of one place of a layer; ``None`` where none has it."""


class FloorLike(Protocol):
    """The least time that a decode step can take on one GPU, in nanoseconds."""

    @property
    def memory_ns(self) -> int:
        """To move what it must move, at the bandwidth of the GPU's memory."""

    @property
    def compute_ns(self) -> int:
        """To do its operations, at the GPU's dense peak rates."""


class TrialLike(Protocol):
    """What a metric needs of a trial."""

    @property
    def iterations(self) -> Sequence[IterationLike]:
        """Measured iterations, in the order they ran."""

    @property
    def startup(self) -> StartupLike | None:
        """Start-up costs; ``None`` where the engine never started."""

    @property
    def telemetry(self) -> Sequence[TelemetryLike]:
        """Every GPU of the trial; none where the engine ran on the CPU."""

    @property
    def decode(self) -> DecodeLike | None:
        """The decode steps of a traced trial; ``None`` for any other."""

    @property
    def counted(self) -> CountedLike | None:
        """The launches of a counted trial; ``None`` for any other."""

    @property
    def floor(self) -> FloorLike | None:
        """What its decode steps are held against; ``None`` where that is unknown."""
