"""How much memory an engine took: of its GPUs as torch's allocator counts it, of the host as the kernel does."""

from __future__ import annotations

import operator
from typing import Annotated, Self

from annotated_types import MinLen
from pydantic import Field, model_validator

from perfgate.machine.json_text import Figures
from perfgate.models import Frozen

_Device = Annotated[Figures, Field(exclude_if=operator.not_)]


class Memory(Frozen):
    """Bytes at the end of each measured iteration, once garbage is collected; a figure of each, in order.

    Figures of a GPU are the sums over all ranks, and are empty where the engine has none.

    Args:
        resident: What the engine's processes hold of the host's memory, mapped files left out.
        peak_resident: The most that they held of it at any time since they began, mapped files and all; where there
            are several processes, the sum of what each held at most.
        allocated: What tensors take on the GPUs.
        peak_allocated: The most that they took since the iteration before.
        peak_reserved: The most that torch's allocator held meanwhile, tensors and gaps between them.
    """

    resident: Annotated[Figures, MinLen(1)]
    peak_resident: Annotated[int, Field(ge=0)]
    allocated: _Device = ()
    peak_allocated: _Device = ()
    peak_reserved: _Device = ()

    @model_validator(mode="after")
    def _a_figure_for_each(self) -> Self:
        lengths = {len(self.allocated), len(self.peak_allocated), len(self.peak_reserved)}
        if lengths != {0} and lengths != {len(self.resident)}:
            raise ValueError("expected the figures of a GPU for each iteration, or for none")
        return self

    @property
    def peak_device(self) -> int | None:
        """The most that tensors took on the GPUs."""
        return max(self.peak_allocated, default=None)

    @property
    def activations(self) -> int | None:
        """The most that an iteration allocated for a while, above what was left of the iteration before.

        Graphs keep theirs: what a CUDA graph allocates is there before and after.
        """
        above = (peak - before for peak, before in zip(self.peak_allocated[1:], self.allocated, strict=False))
        return max(above, default=None)

    @property
    def fragmentation(self) -> float | None:
        """What the allocator held at most, by what tensors took at most; 1 where it holds nothing else."""
        most = self.peak_device
        return max(self.peak_reserved) / most if most else None

    @property
    def device_growth(self) -> float | None:
        """What tensors take after the last iteration, by what they took after the first; 1 where nothing is kept."""
        return _growth(self.allocated)

    @property
    def host_growth(self) -> float | None:
        """The same of the host's memory."""
        return _growth(self.resident)


def _growth(figures: Figures) -> float | None:
    return figures[-1] / figures[0] if len(figures) > 1 and figures[0] else None
